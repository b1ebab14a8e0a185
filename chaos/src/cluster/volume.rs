//! A small file system of a replica's own: an ext4 image on a loop device, which can be filled, frozen or lose power.

use std::io;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::power;

/// The file that takes the room of a full disk.
const BALLOON: &str = "balloon";
/// Pieces of the balloon, from large to small.
const PIECE_BYTES_MAX: u64 = 1 << 30;
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// Why a volume does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A system's tool failed or is not there.
    #[error("`{command}` failed: {answer}")]
    Tool {
        /// What was called.
        command: String,
        /// What it said.
        answer: String,
    },
    /// The system refused.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The cluster was started without.
    #[error("the replicas have no volumes of their own: these need root")]
    None,
}

/// One image and where it is mounted.
#[derive(Debug)]
pub struct Volume {
    image: PathBuf,
    mount: PathBuf,
    /// Must be mounted anew before it can be used.
    is_down: bool,
    is_frozen: bool,
}

impl Volume {
    /// Makes and mounts an image of so many bytes, which takes room only as it is used. Needs root.
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub async fn create(image: PathBuf, mount: PathBuf, bytes: u64) -> Result<Volume, VolumeError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| VolumeError::Io { path, source }
        };
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).map_err(at(&image))?;
        std::fs::create_dir_all(&mount).map_err(at(&mount))?;
        // No reserve for root: full is full.
        call("mkfs.ext4", &["-q", "-F", "-m", "0", text(&image)]).await?;
        let volume = Volume { image, mount, is_down: false, is_frozen: false };
        volume.attach().await?;
        Ok(volume)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Whether nothing is wrong with it.
    pub fn is_whole(&self) -> bool {
        !self.is_down && !self.is_frozen && !self.mount.join(format!("{BALLOON}-0")).exists()
    }

    /// Whether nobody may use it while it is made whole.
    pub fn needs_renewal(&self) -> bool {
        self.is_down
    }

    /// The power is cut: what was not synced is gone, every call answers EIO until [`Volume::renew`].
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub fn cut_power(&mut self) -> Result<(), VolumeError> {
        self.is_down = true;
        power::cut(&self.mount).map_err(|source| VolumeError::Io { path: self.mount.clone(), source })
    }

    /// Read-only from now on, as after the kernel has met an error of the disk: writes answer EROFS.
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub async fn abort(&mut self) -> Result<(), VolumeError> {
        self.is_down = true;
        call("mount", &["-o", "remount,abort", text(&self.mount)]).await
    }

    /// Every write waits until [`Volume::thaw`].
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub async fn freeze(&mut self) -> Result<(), VolumeError> {
        self.is_frozen = true;
        call("fsfreeze", &["-f", text(&self.mount)]).await
    }

    /// Writes go on.
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub async fn thaw(&mut self) -> Result<(), VolumeError> {
        if !self.is_frozen {
            return Ok(());
        }
        self.is_frozen = false;
        call("fsfreeze", &["-u", text(&self.mount)]).await
    }

    /// Takes all room that is left.
    ///
    /// # Errors
    /// [`VolumeError`] if the system's tool is missing.
    pub async fn fill(&self) -> Result<(), VolumeError> {
        let mut piece_bytes = PIECE_BYTES_MAX;
        let mut number = 0;
        while piece_bytes >= PIECE_BYTES_MIN {
            let piece = self.mount.join(format!("{BALLOON}-{number}"));
            // A piece that does not fit takes what there is, or nothing.
            let is_whole = call("fallocate", &["-l", &piece_bytes.to_string(), text(&piece)]).await.is_ok();
            if number == 0 && !piece.exists() {
                let path = piece;
                return Err(VolumeError::Io { path, source: io::ErrorKind::NotFound.into() });
            }
            number += 1;
            if !is_whole {
                piece_bytes /= 4;
            }
        }
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub fn free(&self) -> Result<(), VolumeError> {
        let error = |source| VolumeError::Io { path: self.mount.clone(), source };
        for entry in std::fs::read_dir(&self.mount).map_err(error)? {
            let entry = entry.map_err(error)?;
            if entry.file_name().to_string_lossy().starts_with(BALLOON) {
                std::fs::remove_file(entry.path()).map_err(error)?;
            }
        }
        Ok(())
    }

    /// Mounts it anew where that is needed: the journal is replayed and the structure checked, as when a machine starts
    /// again. Nobody may use it.
    ///
    /// # Errors
    /// [`VolumeError`] if the system refuses.
    pub async fn renew(&mut self) -> Result<(), VolumeError> {
        if self.is_down {
            call("umount", &[text(&self.mount)]).await?;
            // 1: it has mended something, as it should.
            let checked = call("e2fsck", &["-p", text(&self.image)]).await;
            if let Err(VolumeError::Tool { command, answer }) = checked
                && !answer.starts_with("exit status: 1;")
            {
                return Err(VolumeError::Tool { command, answer });
            }
            self.attach().await?;
            self.is_down = false;
        }
        Ok(())
    }

    /// Unmounts it; the image stays.
    pub async fn detach(&mut self) {
        let _ = self.thaw().await;
        if let Err(error) = call("umount", &[text(&self.mount)]).await {
            tracing::warn!(%error, "a volume stays mounted until this program ends");
        }
    }

    async fn attach(&self) -> Result<(), VolumeError> {
        call("mount", &["-o", "loop", text(&self.image), text(&self.mount)]).await
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

async fn call(program: &str, arguments: &[&str]) -> Result<(), VolumeError> {
    let failed = |answer| VolumeError::Tool { command: format!("{program} {}", arguments.join(" ")), answer };
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default()))
        .output()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}; {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}
