//! What this machine and this build let the harness do: file systems of our own, the shim.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cluster::volume::Volume;
use crate::nemesis::FaultKind;
use crate::network_mode::NetworkMode;
use crate::own_namespace;
use crate::run_record::Skipped;

const PROBE_BYTES: u64 = 16 << 20;
const SHIM: &str = "libflotilla_io_shim.so";

/// Each with the reason where it is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// Loop-mounted file systems that can lose power.
    pub volumes: Result<(), String>,
    /// The shim's library.
    pub shim: Result<PathBuf, String>,
    /// Network namespaces for the replicas.
    pub namespaces: Result<(), String>,
    /// Packets between these that get lost by chance.
    pub packet_loss: Result<(), String>,
}

impl Abilities {
    /// Tries what can only be known by trying.
    pub async fn probe() -> Abilities {
        let namespaces = own_namespace::has_network();
        let packet_loss = namespaces.clone().and_then(|()| own_namespace::probe_loss());
        Abilities { volumes: try_volume().await, shim: find_shim(), namespaces, packet_loss }
    }

    /// Those of the faults that can be done here, in a group of so many on such a network; and the others with the reason.
    pub fn sift(&self, kinds: &[FaultKind], replicas: u64, network: NetworkMode) -> (Vec<FaultKind>, Vec<Skipped>) {
        let (mut able, mut skipped) = (Vec::new(), Vec::new());
        for kind in kinds.iter().copied() {
            let card = kind.card();
            let lacks = if card.replicas_min > replicas {
                Some(format!("it means nothing with fewer than {} replicas", card.replicas_min))
            } else if card.needs_volumes {
                self.volumes.clone().err()
            } else {
                None
            };
            let other_network = card.only_in.filter(|mode| *mode != network);
            let lacks = lacks.or_else(|| other_network.map(|mode| self.why_not_on(mode)));
            let by_kernel = card.needs_packet_loss && network == NetworkMode::Namespaces;
            let lacks = lacks.or_else(|| self.packet_loss.clone().err().filter(|_| by_kernel));
            let lacks = lacks.or_else(|| self.shim.clone().err().filter(|_| card.needs_shim));
            match lacks {
                None => able.push(kind),
                Some(why) => skipped.push(Skipped { kind, why }),
            }
        }
        (able, skipped)
    }

    fn why_not_on(&self, mode: NetworkMode) -> String {
        match (mode, &self.namespaces) {
            (NetworkMode::Namespaces, Err(why)) => format!("it needs replicas in network namespaces: {why}"),
            _ => format!("this run's network is another one: it is done with `--network {mode}`"),
        }
    }
}

/// Whether this process may do everything on its machine.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

async fn try_volume() -> Result<(), String> {
    if !is_root() {
        return Err("file systems of its own need root".to_owned());
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    let mut volume = Volume::create(image, mount, PROBE_BYTES).await.map_err(|error| error.to_string())?;
    let cut = volume.cut_power().map_err(|error| error.to_string());
    volume.detach().await;
    cut
}

fn find_shim() -> Result<PathBuf, String> {
    let own = std::env::current_exe().unwrap_or_default();
    let dir = own.parent().unwrap_or(Path::new("."));
    let places = [dir.join(SHIM), dir.join("deps").join(SHIM), dir.join("..").join(SHIM)];
    let found = places.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| format!("{SHIM} is not beside this program: `cargo build --release -p flotilla-io-shim`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_is_left_out_with_the_reason() {
        let poor = Abilities {
            volumes: Err("no root".into()),
            shim: Err("no shim".into()),
            namespaces: Err("no nft".into()),
            packet_loss: Err("no tc".into()),
        };
        let asked =
            [FaultKind::KillLeader, FaultKind::PowerLossAll, FaultKind::ClockJump, FaultKind::Ring, FaultKind::Unplug];
        let (able, skipped) = poor.sift(&asked, 3, NetworkMode::Proxies);
        assert_eq!(able, [FaultKind::KillLeader]);
        let reasons: Vec<_> = skipped.iter().map(|skipped| (skipped.kind, skipped.why.as_str())).collect();
        assert_eq!(reasons[..2], [(FaultKind::PowerLossAll, "no root"), (FaultKind::ClockJump, "no shim")]);
        assert!(reasons[2].1.contains("fewer than 5"));
        assert!(reasons[3].1.contains("no nft"));
        let lossy = [FaultKind::LossyLink];
        assert_eq!(poor.sift(&lossy, 3, NetworkMode::Proxies), (lossy.to_vec(), Vec::new()), "proxies need no kernel");
        assert_eq!(poor.sift(&lossy, 3, NetworkMode::Namespaces).1[0].why, "no tc");
        let rich = Abilities { volumes: Ok(()), shim: Ok("shim.so".into()), namespaces: Ok(()), packet_loss: Ok(()) };
        assert_eq!(rich.sift(&asked, 5, NetworkMode::Namespaces), (asked.to_vec(), Vec::new()));
        let (able, skipped) = rich.sift(&[FaultKind::CorruptLink], 5, NetworkMode::Namespaces);
        assert_eq!(able, []);
        assert!(skipped[0].why.contains("--network proxies"), "{}", skipped[0].why);
    }
}
