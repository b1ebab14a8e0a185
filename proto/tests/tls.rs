//! Calls over links with TLS, and what callers and operators learn where there is none.

#[path = "../../tls/tests/support/authority.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod authority;
mod support;

use std::sync::Arc;
use std::time::Duration;

use authority::{Authority, Issued, replace};
use bytes::Bytes;
use flotilla_metrics::{Exposition, Scrape};
use flotilla_proto::client::{CallError, Connector, Presence, TonicConnector};
use flotilla_runtime::Runtime;
use flotilla_tls::{Credentials, Link, Pem, TlsConfig, TlsLinks, TlsMode};
use support::{Echo, Server, connector, send_of, services, start, start_on, within_ms};
use tokio::net::TcpStream;

const HOSTS: [&str; 2] = ["127.0.0.1", "localhost"];
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a port as the settings say, and its links.
async fn serving(echo: &Arc<Echo>, config: &TlsConfig) -> (Server, TlsLinks) {
    let links = TlsLinks::start(config, &Runtime::tokio()).unwrap();
    let server = start_on("127.0.0.1:0", services(echo).with_tls(links.port(Link::Client))).await;
    (server, links)
}

fn calling(config: &TlsConfig) -> (TonicConnector, TlsLinks) {
    let links = TlsLinks::start(config, &Runtime::tokio()).unwrap();
    (TonicConnector::with_tls(Runtime::tokio(), links.clone()), links)
}

/// A client that believes this CA and shows nothing.
fn client_of(ca: &Authority) -> TonicConnector {
    let credentials = Credentials { ca: Pem::Text(ca.ca_pem()), identity: None };
    TonicConnector::with_tls(Runtime::tokio(), TlsLinks::of_client(credentials, &Runtime::tokio()).unwrap())
}

async fn send(connector: &TonicConnector, address: &str, bytes: usize) -> Result<i64, CallError> {
    let body = Bytes::from(vec![7; bytes]);
    let reply = connector.messaging(address).send_message(within_ms(20_000), send_of(body)).await?;
    Ok(reply.body.entries[0].offset)
}

async fn refusal(connector: &TonicConnector, address: &str) -> String {
    match send(connector, address, 1).await {
        Err(CallError::Refused(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

fn scrape(links: &TlsLinks) -> Scrape {
    let mut out = Exposition::new();
    links.source(&[("replica", "1")]).expect("TLS is on").measure(&mut out);
    Scrape::parse(&out.finish()).unwrap()
}

fn failures(links: &TlsLinks, side: &str, cause: &str) -> f64 {
    let labels = [("link", "client"), ("side", side), ("cause", cause)];
    scrape(links).value("flotilla_tls_handshake_failures_total", &labels).expect("it is counted")
}

fn connections(links: &TlsLinks, side: &str, kind: &str) -> f64 {
    let labels = [("link", "client"), ("side", side), ("kind", kind)];
    scrape(links).value("flotilla_tls_connections_total", &labels).expect("it is counted")
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let runtime = Runtime::tokio();
    let deadline = runtime.now() + PATIENCE;
    while !holds() {
        assert!(runtime.now() < deadline, "{what} did not become true within {PATIENCE:?}");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn calls_small_and_large_go_over_tls() {
    let (ca, echo) = (Authority::new("ca"), Echo::new());
    let issued = ca.issue("node", &HOSTS);
    let (server, links) = serving(&echo, &issued.config(TlsMode::Required)).await;
    let client = client_of(&ca);
    let by_name = server.address.replace("127.0.0.1", "localhost");
    // A connection stands as long as somebody holds what was made for its address.
    let _held = (client.messaging(&server.address), client.messaging(&by_name));
    for bytes in [1, 4 << 20, 100_000] {
        assert_eq!(send(&client, &server.address, bytes).await, Ok(bytes as i64));
    }
    assert!(echo.last_context().remote.starts_with("127.0.0.1:"), "the caller's address is known");
    assert_eq!(send(&client, &by_name, 5).await, Ok(5));
    assert_eq!(connections(&links, "in", "tls"), 2.0, "one for each name");
}

#[tokio::test]
async fn an_optional_port_takes_both() {
    let (ca, echo) = (Authority::new("ca"), Echo::new());
    let (server, links) = serving(&echo, &ca.issue("node", &HOSTS).config(TlsMode::Optional)).await;
    assert_eq!(send(&connector(), &server.address, 3).await, Ok(3));
    assert_eq!(send(&client_of(&ca), &server.address, 3).await, Ok(3));
    assert_eq!((connections(&links, "in", "tls"), connections(&links, "in", "plain")), (1.0, 1.0));
}

#[tokio::test]
async fn who_comes_plain_to_a_port_that_requires_tls_is_told_so() {
    let (ca, echo) = (Authority::new("ca"), Echo::new());
    let (server, links) = serving(&echo, &ca.issue("node", &HOSTS).config(TlsMode::Required)).await;
    let text = send(&connector(), &server.address, 1).await.unwrap_err().to_string();
    assert!(text.contains("this port takes TLS only"), "{text}");
    assert!(failures(&links, "in", "not_tls") >= 1.0);
}

#[tokio::test]
async fn a_caller_that_requires_tls_sends_nothing_to_a_plain_port_and_one_that_would_like_it_goes_on() {
    let (ca, echo) = (Authority::new("ca"), Echo::new());
    let issued = ca.issue("node", &HOSTS);
    let server = start(&echo).await;
    let (required, links) = calling(&issued.config(TlsMode::Required));
    let text = refusal(&required, &server.address).await;
    assert!(text.contains(&server.address) && text.contains("does not speak TLS"), "{text}");
    assert!(failures(&links, "out", "not_tls") >= 1.0);
    let (optional, links) = calling(&issued.config(TlsMode::Optional));
    assert_eq!(send(&optional, &server.address, 9).await, Ok(9));
    assert_eq!((connections(&links, "out", "plain"), failures(&links, "out", "not_tls")), (1.0, 1.0));
}

#[tokio::test]
async fn certificates_that_are_not_believed_are_refused_with_the_reason() {
    let (ca, other, echo) = (Authority::new("ca"), Authority::new("other"), Echo::new());
    let (server, _links) = serving(&echo, &ca.issue("node", &HOSTS).config(TlsMode::Required)).await;
    let text = refusal(&client_of(&other), &server.address).await;
    assert!(text.contains(&server.address) && text.contains("ca_file"), "{text}");
    let (elsewhere, _links) = serving(&echo, &ca.issue("elsewhere", &["10.9.8.7"]).config(TlsMode::Required)).await;
    let text = refusal(&client_of(&ca), &elsewhere.address).await;
    assert!(text.contains("for other hosts") && text.contains("10.9.8.7"), "{text}");
}

#[tokio::test]
async fn an_expired_certificate_ends_no_connection_and_lets_in_no_new_one() {
    let (ca, echo, runtime) = (Authority::new("ca"), Echo::new(), Runtime::tokio());
    let issued = ca.issue_for("node", &HOSTS, Duration::from_secs(10));
    let (server, links) = serving(&echo, &issued.config(TlsMode::Required)).await;
    let early = client_of(&ca);
    let _held = early.messaging(&server.address);
    assert_eq!(send(&early, &server.address, 1).await, Ok(1));
    assert_eq!(links.own_problem(), None);
    eventually("it expires", || links.own_problem().is_some()).await;
    assert!(links.own_problem().unwrap().contains("expired at 2"));
    let warnings = links.source(&[]).unwrap().ready().warnings;
    assert!(warnings[0].contains("expired"), "{warnings:?}");
    assert_eq!(send(&early, &server.address, 2).await, Ok(2), "its connection stands");
    let late = client_of(&ca);
    let text = refusal(&late, &server.address).await;
    assert!(text.contains(&server.address) && text.contains("its certificate expired at 2"), "{text}");
    // A new one is all that it takes.
    ca.issue("node", &HOSTS);
    let deadline = runtime.now() + PATIENCE;
    while send(&late, &server.address, 3).await.is_err() {
        assert!(runtime.now() < deadline, "the new certificate is not used");
        runtime.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(links.own_problem(), None);
}

#[tokio::test]
async fn a_port_that_asks_lets_in_only_who_shows_a_good_certificate() {
    let (ca, other, echo) = (Authority::new("ca"), Authority::new("other"), Echo::new());
    let (server, links) = serving(&echo, &ca.issue("node", &HOSTS).asking_config()).await;
    let (known, _) = calling(&ca.issue("replica", &["10.1.1.1"]).config(TlsMode::Required));
    assert_eq!(send(&known, &server.address, 4).await, Ok(4));
    let text = send(&client_of(&ca), &server.address, 1).await.unwrap_err().to_string();
    assert!(text.to_lowercase().contains("certificate"), "{text}");
    eventually("it is counted", || failures(&links, "in", "no_certificate") >= 1.0).await;
    let stranger = Issued { ca: ca.ca(), ..other.issue("stranger", &HOSTS) };
    let (stranger, _) = calling(&stranger.config(TlsMode::Required));
    assert!(send(&stranger, &server.address, 1).await.is_err());
    eventually("it is counted", || failures(&links, "in", "unknown_ca") >= 1.0).await;
}

#[tokio::test]
async fn new_files_are_used_without_a_restart_and_broken_ones_are_not() {
    let (old, new, echo) = (Authority::new("old"), Authority::new("new"), Echo::new());
    let issued = old.issue("node", &HOSTS);
    let (server, links) = serving(&echo, &issued.config(TlsMode::Required)).await;
    let (of_old, of_new) = (client_of(&old), client_of(&new));
    let _held = of_old.messaging(&server.address);
    assert_eq!(send(&of_old, &server.address, 1).await, Ok(1));
    refusal(&of_new, &server.address).await;
    let replacement = new.issue("node", &HOSTS);
    let text = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let reload_failures = |links: &TlsLinks| scrape(links).value("flotilla_tls_reload_failures_total", &[]).unwrap();

    replace(&issued.cert, "no certificate at all");
    eventually("it is counted", || reload_failures(&links) == 1.0).await;
    replace(&issued.cert, &text(&replacement.cert));
    eventually("a certificate without its key is not taken", || reload_failures(&links) == 2.0).await;
    assert_eq!(send(&client_of(&old), &server.address, 1).await, Ok(1), "the old ones stay");
    replace(&issued.key, &text(&replacement.key));
    eventually("they are taken", || scrape(&links).value("flotilla_tls_reloads_total", &[]) == Some(1.0)).await;
    assert_eq!(send(&of_new, &server.address, 2).await, Ok(2));
    assert_eq!(send(&of_old, &server.address, 3).await, Ok(3), "the old connection goes on");
}

#[tokio::test]
async fn files_that_are_not_usable_are_refused_at_start_with_the_reason() {
    let (ca, runtime) = (Authority::new("ca"), Runtime::tokio());
    let good = ca.issue("node", &HOSTS);
    let expired = ca.issue_expired("old", &HOSTS);
    let nowhere = good.cert.with_file_name("nowhere");
    let cases = [
        (expired.clone(), vec!["old.crt expired at 2024-01-01 00:00:00 UTC, now it is 2"]),
        (
            Issued { key: expired.key.clone(), ..good.clone() },
            vec!["old.key does not belong to certificate", "node.crt"],
        ),
        (Issued { cert: nowhere.clone(), ..good.clone() }, vec!["certificate", "nowhere cannot be read"]),
        (Issued { cert: good.key.clone(), ..good.clone() }, vec!["node.key holds no certificate in PEM"]),
        (Issued { key: good.cert.clone(), ..good.clone() }, vec!["node.crt holds no private key in PEM"]),
        (Issued { ca: good.key.clone(), ..good.clone() }, vec!["CA", "node.key holds no certificate"]),
    ];
    for (issued, parts) in cases {
        let text = TlsLinks::start(&issued.config(TlsMode::Optional), &runtime).unwrap_err().to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
    }
}

#[tokio::test]
async fn a_look_at_the_port_is_no_failure_and_silence_holds_up_nobody() {
    let (ca, echo) = (Authority::new("ca"), Echo::new());
    let (server, links) = serving(&echo, &ca.issue("node", &HOSTS).asking_config()).await;
    let (caller, _) = calling(&ca.issue("replica", &HOSTS).config(TlsMode::Required));
    assert_eq!(caller.peer(&server.address).probe(PATIENCE).await, Presence::Listening);
    let _silent = TcpStream::connect(&server.address).await.unwrap();
    assert_eq!(send(&caller, &server.address, 6).await, Ok(6));
    let all = scrape(&links).sum("flotilla_tls_handshake_failures_total", &[]);
    assert_eq!(all, 0.0);
    let address = server.address.clone();
    let expires = scrape(&links).value("flotilla_tls_certificate_expires_seconds", &[("replica", "1")]).unwrap();
    assert!(expires > 1.8e9, "{expires}");
    drop(server);
    let (runtime, peer) = (Runtime::tokio(), caller.peer(&address));
    let deadline = runtime.now() + PATIENCE;
    while peer.probe(PATIENCE).await != Presence::Refused {
        assert!(runtime.now() < deadline, "nobody listens any more");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}
