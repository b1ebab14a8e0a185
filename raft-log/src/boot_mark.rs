//! Whether the machine has lost what was not on disk: the boot in which the log was last open, and how it was closed.
//!
//! `docs/formats/boot-mark.md` draws the file. It is there only while appends may count before they are on disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use flotilla_planted_bugs::{Bug, is_planted};

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::fields::FieldReader;
use crate::{Corruption, FlushMode, OpenError};

const BOOT_FILE: &str = "boot";
const MAGIC: [u8; 4] = *b"FLBT";
const VERSION: u16 = 1;

/// How the log was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Open: what was not synced went if the machine did.
    Open = 1,
    /// Closed with everything on disk.
    Clean = 2,
    /// It had lost something before, and has not caught up since.
    Recovering = 3,
}

/// The mark of an open log.
pub(crate) struct BootMark {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    mode: FlushMode,
    boot: String,
}

fn encode(state: State, boot: &str) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u8(state as u8);
    out.put_u8(0);
    out.put_u32_le(u32::try_from(boot.len()).expect("an id is short"));
    out.put_slice(boot.as_bytes());
    let crc = crc32c::crc32c(&out);
    out.put_u32_le(crc);
    out
}

fn decode(bytes: Bytes) -> Result<(State, String), String> {
    let Some(body_bytes) = bytes.len().checked_sub(4) else { return Err("it is cut off".to_owned()) };
    let crc = crc32c::crc32c(&bytes[..body_bytes]);
    let mut fields = FieldReader::new(bytes);
    let mut parse = || {
        let magic = fields.take(4)?;
        let (version, state, _) = (fields.u16()?, fields.u8()?, fields.u8()?);
        let len = fields.u32()? as usize;
        let boot = fields.take(len)?;
        Ok::<_, crate::fields::FieldError>((magic, version, state, boot, fields.u32()?, fields.left()))
    };
    let (magic, version, state, boot, said, left) = parse().map_err(|error| error.to_string())?;
    if magic[..] != MAGIC || version != VERSION || said != crc || left > 0 {
        return Err("it does not fit its magic, version, length or checksum".to_owned());
    }
    let state = [State::Open, State::Clean, State::Recovering].into_iter().find(|known| *known as u8 == state);
    let state = state.ok_or("its state is unknown")?;
    Ok((state, String::from_utf8_lossy(&boot).into_owned()))
}

impl BootMark {
    /// Looks at how the log was left, and marks it as open. The second is true if it may lack entries that it had confirmed.
    /// Blocks.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: PathBuf, mode: FlushMode) -> Result<(BootMark, bool), OpenError> {
        let path = dir.join(BOOT_FILE);
        let io_error = |source| OpenError::Io { path: path.clone(), source };
        let left = match read_file(&*disk, &path) {
            Ok(bytes) => {
                let corrupt = |what| OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what });
                Some(decode(bytes).map_err(corrupt)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error(error)),
        };
        // Where boots cannot be told apart, every end of the process counts as that and no more.
        let boot = disk.boot_id().map_err(io_error)?.unwrap_or_default();
        let has_lost = match &left {
            None | Some((State::Clean, _)) => false,
            Some((State::Open | State::Recovering, _)) if is_planted(Bug::VotesBeforeRecovery) => false,
            Some((State::Open, known)) => *known != boot,
            Some((State::Recovering, _)) => true,
        };
        let mark = BootMark { disk, dir, mode, boot };
        let marked = if has_lost { mark.write(State::Recovering) } else { mark.begin(left.is_some()) };
        marked.map_err(io_error)?;
        Ok((mark, has_lost))
    }

    /// Where it is.
    pub(crate) fn place(&self) -> (Arc<dyn Disk>, PathBuf) {
        (self.disk.clone(), self.dir.clone())
    }

    fn write(&self, state: State) -> io::Result<()> {
        write_file_atomically(&*self.disk, &self.dir, BOOT_FILE, &encode(state, &self.boot))
    }

    /// From now on nothing is missing.
    fn begin(&self, is_there: bool) -> io::Result<()> {
        match self.mode {
            FlushMode::Async { .. } => self.write(State::Open),
            // What is confirmed is on disk: there is nothing to lose.
            FlushMode::Sync if is_there => {
                self.disk.remove(&self.dir.join(BOOT_FILE))?;
                self.disk.sync_dir(&self.dir)
            }
            FlushMode::Sync => Ok(()),
        }
    }

    /// What was lost is here again. Blocks.
    pub(crate) fn recovered(&self) -> io::Result<()> {
        self.begin(true)
    }

    /// Everything is on disk, and nothing will be written any more. Blocks.
    pub(crate) fn close(&self) -> io::Result<()> {
        match self.mode {
            FlushMode::Async { .. } => self.write(State::Clean),
            FlushMode::Sync => Ok(()),
        }
    }
}

/// Marks of each kind, for the fuzz test.
#[cfg(test)]
pub(crate) fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let boot = "0b9ba87e-6b0a-4f4b-8d5e-7a0a6a3d9c11";
    vec![
        ("open", encode(State::Open, boot)),
        ("clean", encode(State::Clean, boot)),
        ("recovering", encode(State::Recovering, "")),
    ]
}

/// Whether the bytes are a mark, for the fuzz test.
#[cfg(test)]
pub(crate) fn is_sound(bytes: Bytes) -> bool {
    decode(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::CrashDisk;

    const ASYNC: FlushMode = FlushMode::Async { interval_ms: 100, bytes: 1 << 20 };

    fn open(disk: &CrashDisk, mode: FlushMode) -> (BootMark, bool) {
        BootMark::open(Arc::new(disk.clone()), PathBuf::from("log"), mode).unwrap()
    }

    #[test]
    fn only_another_boot_without_a_clean_close_has_lost_something() {
        let disk = CrashDisk::new(1);
        disk.create_dir_all(&PathBuf::from("log")).unwrap();
        assert!(!open(&disk, ASYNC).1, "a new log");
        assert!(!open(&disk, ASYNC).1, "the process died, the machine did not");
        open(&disk, ASYNC).0.close().unwrap();
        disk.boot_again();
        assert!(!open(&disk, ASYNC).1, "it was closed cleanly before");
        disk.boot_again();
        assert!(open(&disk, ASYNC).1, "it was open");
        let (mark, has_lost) = open(&disk, ASYNC);
        assert!(has_lost, "until it has caught up");
        mark.recovered().unwrap();
        assert!(!open(&disk, ASYNC).1);
    }

    #[test]
    fn a_log_that_syncs_first_has_nothing_to_lose_once_it_has_caught_up() {
        let disk = CrashDisk::new(1);
        disk.create_dir_all(&PathBuf::from("log")).unwrap();
        open(&disk, FlushMode::Sync);
        disk.boot_again();
        assert!(!open(&disk, FlushMode::Sync).1);
        open(&disk, ASYNC);
        disk.boot_again();
        let (mark, has_lost) = open(&disk, FlushMode::Sync);
        assert!(has_lost, "the life before did not sync first");
        mark.recovered().unwrap();
        disk.boot_again();
        assert!(!open(&disk, FlushMode::Sync).1);
    }

    #[test]
    fn a_damaged_mark_is_told_from_a_sound_one() {
        let sound = encode(State::Open, "boot-1");
        assert_eq!(decode(sound.clone().into()), Ok((State::Open, "boot-1".to_owned())));
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x40;
            assert!(decode(damaged.into()).is_err() && decode(sound[..at].to_vec().into()).is_err(), "byte {at}");
        }
    }
}
