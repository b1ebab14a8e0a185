//! A caller learns whether its request surely was not executed.

mod support;

use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{CallError, Connector};
use flotilla_proto::v2;
use flotilla_runtime::Runtime;
use futures::StreamExt;
use support::{Echo, connector, send_of, services, start, start_on, timed_send, unanswered_send, within_ms};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

#[tokio::test]
async fn nobody_listening_is_refused_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let connector = connector();
    for _ in 0..3 {
        let (outcome, took) = timed_send(&connector, &address, within_ms(3000)).await;
        assert!(matches!(outcome, Err(CallError::Refused(_))), "{outcome:?}");
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_and_named() {
    for address in ["", "nonsense", "host:", "host:0", "host:99999", "a b:1", "host:1/path"] {
        let (outcome, _) = timed_send(&connector(), address, within_ms(1000)).await;
        let Err(CallError::Refused(reason)) = outcome else { panic!("{address:?}: {outcome:?}") };
        assert!(reason.contains(&format!("{address:?}")), "{reason}");
    }
}

#[tokio::test]
async fn a_request_that_went_out_is_unknown_when_the_connection_breaks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reader = Runtime::tokio().spawn("reader", async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        // Read on until the message itself has come.
        while !bytes.windows(4).any(|window| window == b"id-1") {
            assert_ne!(socket.read_buf(&mut bytes).await.unwrap(), 0);
        }
    });
    let (outcome, _) = timed_send(&connector(), &address, within_ms(3000)).await;
    assert!(matches!(outcome, Err(CallError::Broken(_))), "{outcome:?}");
    reader.join().await.unwrap();
}

#[tokio::test]
async fn no_answer_in_time_is_unknown() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let outcome = client.send_message(within_ms(200), unanswered_send()).await;
    assert!(matches!(outcome, Err(CallError::Timeout(_))), "{outcome:?}");
    assert_eq!(echo.contexts.lock().unwrap().len(), 1, "it did arrive");
}

#[tokio::test]
async fn no_connection_in_time_is_refused() {
    // A full backlog of a listener that never accepts: further handshakes get no answer.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut fillers = Vec::new();
    for _ in 0..8 {
        fillers.push(Runtime::tokio().spawn("filler", tokio::net::TcpStream::connect(address)));
    }
    Runtime::tokio().sleep(Duration::from_millis(200)).await;
    let (outcome, took) = timed_send(&connector(), &address.to_string(), within_ms(300)).await;
    assert!(matches!(outcome, Err(CallError::Refused(_))), "{outcome:?}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
}

#[tokio::test]
async fn a_killed_server_breaks_calls_in_flight_and_its_successor_is_found_at_once() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let connector = connector();
    let client = connector.messaging(&server.address);
    let waiting = Runtime::tokio().spawn("waiting", client.send_message(within_ms(10_000), unanswered_send()));
    while echo.contexts.lock().unwrap().is_empty() {
        Runtime::tokio().sleep(Duration::from_millis(5)).await;
    }
    // The phase of the kill: every connection is cut, the port is closed.
    let address = server.address.clone();
    drop(server);
    let outcome = waiting.join().await.unwrap();
    assert!(matches!(outcome, Err(CallError::Broken(_))), "{outcome:?}");
    let (outcome, _) = timed_send(&connector, &address, within_ms(2000)).await;
    assert!(matches!(outcome, Err(CallError::Refused(_))), "{outcome:?}");
    // The phase of the restart: the same client connects anew without a pause.
    let _server = start_on(&address, services(&echo)).await;
    let (outcome, took) = timed_send(&connector, &address, within_ms(2000)).await;
    outcome.unwrap();
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[tokio::test]
async fn a_stream_cut_in_the_middle_ends_with_an_error() {
    let echo = Echo::polling(Duration::from_secs(30));
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let request = v2::ReceiveMessageRequest { batch_size: 1, ..Default::default() };
    let mut replies = client.receive_message(within_ms(60_000), request).await.unwrap();
    drop(server);
    let last = replies.next().await;
    assert!(matches!(last, Some(Err(CallError::Broken(_)))), "{last:?}");
    assert!(replies.next().await.is_none());
}

#[tokio::test]
async fn a_poll_that_never_answers_ends_at_the_callers_deadline() {
    let echo = Echo::polling(Duration::from_secs(30));
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let mut replies = client.receive_message(within_ms(300), v2::ReceiveMessageRequest::default()).await.unwrap();
    let last = replies.next().await;
    assert!(matches!(last, Some(Err(CallError::Timeout(_)))), "{last:?}");
}

#[tokio::test]
async fn a_request_over_the_limit_is_told_with_both_sizes_and_harms_no_other_call() {
    let server = start(&Echo::new()).await;
    let client = connector().messaging(&server.address);
    let huge = send_of(Bytes::from(vec![0; flotilla_proto::MESSAGE_BYTES_MAX + 1]));
    let outcome = client.send_message(within_ms(5000), huge).await;
    let Err(CallError::Status { code: 11, message }) = outcome else { panic!("{outcome:?}") };
    assert!(message.contains("33554432"), "{message}");
    client.send_message(within_ms(5000), send_of(Bytes::from_static(b"x"))).await.unwrap();
}
