//! A mount and a network namespace of this program's own: what it makes there is nobody else's, and the kernel takes it
//! away when the last process in there ends, however it ends.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::abilities::is_root;
use crate::cluster::packet_loss;
use crate::cluster::tool::search_path;
use crate::network_mode::NetworkMode;

/// Set in the process that has namespaces of its own: which network it had before, or why it has none of its own.
const VARIABLE: &str = "FLOTILLA_CHAOS_NAMESPACE";
const WITH_NETWORK: &str = "network of its own, not ";
/// How `unshare` makes mounts that nobody else sees.
const MOUNTS: [&str; 3] = ["--mount", "--propagation", "private"];

/// Why this process stayed where it was.
static STAYED: OnceLock<String> = OnceLock::new();

/// What namespaces for replicas are made with, and in which package each tool is.
const TOOLS: [(&str, &str); 4] =
    [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2"), ("ss", "iproute2")];

/// Makes all that a cluster of namespaces needs, in namespaces that end with this script: the folder holds nothing else.
const PROBE: &str = r#"set -e
ip link set lo up
: > "$0/replica"
unshare --net="$0/replica" -- true
ip link add bridge0 type bridge
ip link set bridge0 up
ip link add cable0 type veth peer name eth0 netns "$0/replica"
ip link set cable0 master bridge0 up
exec nsenter --net="$0/replica" -- sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward && ip -batch - && ss --tcp --kill'
"#;

/// Rules of each form that faults use.
const PROBE_RULES: &str = "\
link set eth0 up
rule add pref 100 lookup local
rule del pref 0
rule add pref 10 from 10.77.0.1 ipproto tcp blackhole
rule add pref 10 from 10.77.0.1 ipproto tcp dport 8082 blackhole
rule add pref 10 from 10.77.0.1 ipproto tcp sport 8082 blackhole
rule add pref 10 to 10.77.0.1 ipproto tcp dport 8082 unreachable
rule del pref 10 from 10.77.0.1 ipproto tcp blackhole
";

/// Makes a cable of a namespace that ends with this script, to lose packets on.
const PROBE_LOSS: &str = "set -e
ip link add cable0 type veth peer name eth0
exec tc -batch -
";

/// Starts this program again in a mount namespace of its own, and a network namespace where `network` wants one and it can
/// be had. Answers only if that is not possible, or has been done.
pub fn enter(network: NetworkMode) {
    if std::env::var_os(VARIABLE).is_some() {
        if has_network().is_ok()
            && let Err(why) = run(Command::new("ip").args(["link", "set", "lo", "up"]), "")
        {
            eprintln!("chaos: no loopback: {why}");
        }
        return;
    }
    if !is_root() {
        return;
    }
    let Ok(own) = std::env::current_exe() else { return };
    let found = match network {
        NetworkMode::Proxies => Err("proxies were asked for".to_owned()),
        NetworkMode::Auto | NetworkMode::Namespaces => match own_network() {
            Some(_) => probe(),
            None => Err("/proc/self/ns/net cannot be read".to_owned()),
        },
    };
    let mut again = Command::new("unshare");
    again.args(MOUNTS).env("PATH", search_path());
    let why = match found {
        Ok(()) => {
            again.arg("--net").env(VARIABLE, with_network());
            None
        }
        // A root that may not have everything may not have this either.
        Err(why) => match run(Command::new("unshare").args(MOUNTS).args(["--", "true"]), "") {
            Ok(()) => {
                again.env(VARIABLE, &why);
                Some(why)
            }
            Err(refusal) => {
                eprintln!("chaos: no mounts of its own: {refusal}");
                STAYED.get_or_init(|| why);
                return;
            }
        },
    };
    let error = again.arg("--").arg(own).args(std::env::args_os().skip(1)).exec();
    eprintln!("chaos: no mounts of its own: {error}");
    STAYED.get_or_init(|| why.unwrap_or_else(|| error.to_string()));
}

/// Whether replicas can have network namespaces here, or why not.
///
/// # Errors
/// The reason.
pub fn has_network() -> Result<(), String> {
    match std::env::var(VARIABLE) {
        Ok(found) if found.starts_with(WITH_NETWORK) => {
            if is_apart() {
                Ok(())
            } else {
                Err("this process shares the network of the one that started it".to_owned())
            }
        }
        Ok(why) => Err(why),
        Err(_) if is_root() => {
            let why = STAYED.get().cloned();
            Err(why.unwrap_or_else(|| "this process has no network namespace of its own".to_owned()))
        }
        Err(_) => Err("network namespaces need root".to_owned()),
    }
}

/// Whether this process's network is another one than that of the process that made it: what the machine's first process has
/// may be hidden.
pub(crate) fn is_apart() -> bool {
    let found = std::env::var(VARIABLE).unwrap_or_default();
    let before = found.strip_prefix(WITH_NETWORK).and_then(|number| number.parse::<u64>().ok());
    matches!((before, own_network()), (Some(before), Some(own)) if own != before)
}

/// The number of this process's network namespace.
fn own_network() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

/// What a process is told that is started in another network.
fn with_network() -> String {
    format!("{WITH_NETWORK}{}", own_network().map(|number| number.to_string()).unwrap_or_default())
}

/// Tries what can only be known by trying.
pub(crate) fn probe() -> Result<(), String> {
    let path = search_path();
    for (tool, package) in TOOLS {
        if !path.split(':').any(|dir| Path::new(dir).join(tool).is_file()) {
            return Err(format!("`{tool}` is not installed: it is in the package {package}"));
        }
    }
    // Once is no refusal: see `BUILDS_MAX` of the namespaces.
    let found = try_out().or_else(|_| try_out());
    found.map_err(|why| format!("the system refuses them: {why}"))
}

fn try_out() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut script = Command::new("unshare");
    script.args(MOUNTS).args(["--net", "--", "sh", "-c", PROBE]).arg(dir.path());
    run(&mut script, PROBE_RULES)
}

/// Whether packets between namespaces can get lost by chance, or why not.
///
/// # Errors
/// The reason.
pub(crate) fn probe_loss() -> Result<(), String> {
    let mut script = Command::new("unshare");
    script.args(["--net", "--", "sh", "-c", PROBE_LOSS]);
    let losses = [(Ipv4Addr::LOCALHOST, 1)].into();
    run(&mut script, &packet_loss::commands(&losses))
        .map_err(|why| format!("`tc` of iproute2 cannot have packets dropped by chance: {why}"))
}

fn run(command: &mut Command, input: &str) -> Result<(), String> {
    command.env("PATH", search_path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // One that ends without reading tells why by its status.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}; {}", output.status, said.lines().next().unwrap_or("no word of it")))
}

/// Starts a test again where it may change the network, and answers true when it has passed there; false there. Where that
/// cannot be it says why, and answers true.
#[cfg(test)]
pub(crate) fn is_started_apart(name: &str) -> bool {
    // Once, whatever it finds there: a test that is not apart fails by itself.
    if std::env::var_os(VARIABLE).is_some() {
        return false;
    }
    let lacks = if is_root() { probe() } else { has_network() };
    if let Err(why) = lacks {
        eprintln!("{name} is not run: {why}");
        return true;
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--net", "--propagation", "private", "--"]).arg(std::env::current_exe().unwrap());
    let output = again.args([name, "--exact", "--nocapture"]).env(VARIABLE, with_network()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    true
}
