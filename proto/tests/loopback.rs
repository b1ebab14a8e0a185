//! Calls of every shape over a real loopback connection.

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{CallError, Connector};
use flotilla_proto::server::Services;
use flotilla_proto::{PeerLink, admin, metadata, namesrv, peer, v2};
use flotilla_runtime::Runtime;
use futures::StreamExt;
use support::{Echo, connector, place, send_of, services, start, start_on, within_ms};
use tokio::sync::mpsc;

#[tokio::test]
async fn a_unary_call_carries_a_large_body_and_metadata_both_ways() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let options = within_ms(5000).with_metadata(Arc::new(metadata::of_client("host@1@2", "0.1.0")));

    let begin = Runtime::tokio().now();
    let reply = client.send_message(options, send_of(Bytes::from(vec![7; 5 << 20]))).await.unwrap();
    assert_eq!(reply.body.entries[0].message_id, "id-1");
    assert_eq!(reply.body.entries[0].offset, 5 << 20);
    assert_eq!(reply.value_of(metadata::ACK_PLACE).unwrap().parse(), Ok(place(0)));
    assert_eq!(reply.value_of("x-second"), Some("2"));

    let context = echo.last_context();
    assert_eq!(context.client_id.as_deref(), Some("host@1@2"));
    assert_eq!(context.language, "RUST");
    assert!(context.user_agent.starts_with("flotilla/"), "{}", context.user_agent);
    assert!(context.remote.starts_with("127.0.0.1:"), "{}", context.remote);
    let left = context.deadline - begin;
    assert!(left > Duration::from_secs(4) && left < Duration::from_secs(8), "{left:?}");
}

#[tokio::test]
async fn a_server_stream_brings_all_messages_and_ends() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let request = v2::ReceiveMessageRequest { batch_size: 100, ..Default::default() };
    let replies = client.receive_message(within_ms(5000), request).await.unwrap();
    let replies: Vec<_> = replies.map(|reply| reply.unwrap()).collect().await;
    assert_eq!(replies.len(), 101, "a hundred messages and the status");
}

#[tokio::test]
async fn headers_of_a_poll_leave_before_its_service_is_done() {
    let echo = Echo::polling(Duration::from_millis(600));
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let runtime = Runtime::tokio();
    let begin = runtime.now();
    let request = v2::ReceiveMessageRequest { batch_size: 1, ..Default::default() };
    let mut replies = client.receive_message(within_ms(5000), request).await.unwrap();
    assert!(runtime.now() - begin < Duration::from_millis(500), "{:?}", runtime.now() - begin);
    assert!(replies.next().await.unwrap().is_ok());
    assert!(runtime.now() - begin >= Duration::from_millis(600));
}

#[tokio::test]
async fn telemetry_headers_leave_at_once_and_commands_go_both_ways() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let (commands, outbound) = mpsc::channel(4);
    // The server has not sent a message yet, nor have we: only headers can make this resolve.
    let mut answers = client.telemetry(within_ms(2000), outbound).await.unwrap();
    commands.send(v2::TelemetryCommand::default()).await.unwrap();
    let answer = answers.next().await.unwrap().unwrap();
    assert_eq!(answer.status.unwrap().code, v2::Code::Ok as i32);
    drop(commands);
    assert!(answers.next().await.is_none(), "the service ends when its client has nothing more to say");

    let (commands, outbound) = mpsc::channel(4);
    drop(client.telemetry(within_ms(2000), outbound).await.unwrap());
    let closed = Runtime::tokio().timeout(Duration::from_secs(5), commands.closed()).await;
    assert_eq!(closed, Ok(()), "nobody sends any more once the answers are dropped");
}

#[tokio::test]
async fn an_rpc_without_a_body_of_its_own_answers_not_implemented() {
    let server = start(&Echo::new()).await;
    let client = connector().messaging(&server.address);
    let reply = client.end_transaction(within_ms(2000), v2::EndTransactionRequest::default()).await.unwrap();
    let status = reply.body.status.unwrap();
    assert_eq!(status.code, v2::Code::NotImplemented as i32);
    assert!(status.message.contains("EndTransaction"), "{}", status.message);
}

#[tokio::test]
async fn a_service_that_is_not_offered_is_told_by_its_path() {
    let server = start_on("127.0.0.1:0", Services::new(Runtime::tokio())).await;
    let connector = connector();
    let error = connector.admin(&server.address).debug(within_ms(2000), admin::DebugRequest::default()).await;
    let Err(CallError::Status { code: 12, message }) = error else { panic!("{error:?}") };
    assert!(message.contains("flotilla.admin.v1.Admin/Debug"), "{message}");
    let request = namesrv::ListBrokersRequest::default();
    let error = connector.namesrv(&server.address).list_brokers(within_ms(2000), request).await;
    assert!(matches!(error, Err(CallError::Status { code: 12, .. })), "{error:?}");
}

fn link_to(to: u64) -> PeerLink {
    PeerLink { cluster: "flotilla".to_owned(), group: "group-a".to_owned(), from: 1, to }
}

#[tokio::test]
async fn append_frames_come_back_in_order_and_dropping_either_half_closes() {
    let server = start(&Echo::new()).await;
    let client = connector().peer(&server.address);
    let mut stream = client.open_append(link_to(2), Duration::from_secs(2)).await.unwrap();
    for i in 0..200_u32 {
        stream.requests.send(Bytes::copy_from_slice(&i.to_be_bytes())).await.unwrap();
        assert_eq!(stream.responses.recv().await.unwrap()[..], i.to_be_bytes());
    }
    stream.requests.send(Bytes::from(vec![1; 16 << 20])).await.unwrap();
    assert_eq!(stream.responses.recv().await.unwrap().len(), 16 << 20);
    drop(stream.requests);
    assert_eq!(stream.responses.recv().await, None);

    let stream = client.open_append(link_to(2), Duration::from_secs(2)).await.unwrap();
    drop(stream.responses);
    let closed = Runtime::tokio().timeout(Duration::from_secs(5), stream.requests.closed()).await;
    assert_eq!(closed, Ok(()), "the request half ends with the other");
}

#[tokio::test]
async fn a_peer_that_is_not_meant_refuses() {
    let server = start(&Echo::new()).await;
    let client = connector().peer(&server.address);
    let error = client.open_append(link_to(3), Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(&error, CallError::Status { code: 9, message } if message.contains("node 3")), "{error:?}");
    let call = peer::PeerCall { to: 3, ..Default::default() };
    let error = client.call(call, Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(error, CallError::Status { code: 9, .. }), "{error:?}");
    let call = peer::PeerCall { to: 2, body: Bytes::from_static(b"vote"), ..Default::default() };
    assert_eq!(client.call(call, Duration::from_secs(2)).await.unwrap(), "vote");
    let response = client.forward(peer::ForwardRequest::default(), Duration::from_secs(2)).await.unwrap();
    assert!(response.not_leader);
}

#[tokio::test]
async fn a_stop_ends_open_streams_and_frees_the_port() {
    let echo = Echo::new();
    let server = start(&echo).await;
    let client = connector().messaging(&server.address);
    let (_commands, outbound) = mpsc::channel(4);
    let mut answers = client.telemetry(within_ms(2000), outbound).await.unwrap();

    server.stop.send(()).unwrap();
    let ended = Runtime::tokio().timeout(Duration::from_secs(5), server.task.join()).await;
    assert_eq!(ended.expect("serving ends soon").unwrap(), Ok(()));
    let last = answers.next().await;
    assert!(matches!(last, None | Some(Err(_))), "{last:?}");
    start_on(&server.address, services(&echo)).await;
}
