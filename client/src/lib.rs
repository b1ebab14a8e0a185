//! The client of a Flotilla cluster: send, receive, administer, and go on by itself when replicas fail.
//!
//! What it promises:
//! - a send ends as stored, not stored or unknown, and is never guessed ([`SendError`]);
//! - all attempts of one send carry the same message id, so that the broker stores it once;
//! - the replicas of a group are asked in turn until one serves, within the caller's deadline;
//! - what runs at once is bounded, and waiting for a place is what a caller feels of it.
//!
//! With [`ClientConfig::tls`] every connection has TLS, and goes to nobody whose certificate is not believed.
//!
//! Time, tasks, randomness and calls are handed in ([`flotilla_runtime::Runtime`],
//! [`flotilla_proto::client::Connector`]), so that the same code runs in a simulation.
//!
//! ```no_run
//! use flotilla_client::{Client, ClientConfig, OutgoingMessage, ProducerConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::tonic(ClientConfig::of_namesrv(["127.0.0.1:9876"]))?;
//! let producer = client.producer(ProducerConfig::default())?;
//! let receipt = producer.send(OutgoingMessage::new("orders".try_into()?, "one cup of tea")).await?;
//! println!("{} is at offset {}", receipt.message_id, receipt.offset);
//! # Ok(())
//! # }
//! ```

mod admin_client;
mod admin_cluster;
mod broadcast_consumer;
mod broker_word;
mod client;
mod config;
mod consuming;
mod failover;
mod failure;
mod membership;
mod message_ids;
mod outgoing;
mod position_file;
mod producer;
mod pull_consumer;
mod push_consumer;
mod receipt;
mod received;
mod replicas;
mod route;
mod route_cache;
mod simple_consumer;
mod spread;
mod wire;

#[cfg(test)]
mod admin_test;
#[cfg(test)]
mod consumer_test;
#[cfg(test)]
mod cut_test;
#[cfg(test)]
mod producer_test;
#[cfg(test)]
mod route_test;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod virtual_time;

pub use admin_client::{
    AdminClient, AdminError, FromReplica, GroupDescription, GroupSpec, GroupStart, TopicDescription, TopicSpec,
};
pub use broadcast_consumer::{BroadcastConsumer, BroadcastError};
pub use client::Client;
pub use config::{
    BroadcastConsumerConfig, BroadcastPositions, ClientConfig, ConfigErrors, Filter, ProducerConfig,
    PullConsumerConfig, PullStart, PushConsumerConfig, SimpleConsumerConfig,
};
pub use consuming::{DeliveryError, ReceiveError};
pub use flotilla_tls::{Credentials, Identity, Pem};
pub use outgoing::OutgoingMessage;
pub use position_file::{PositionFile, PositionFileError};
pub use producer::{Producer, SendHandle};
pub use pull_consumer::{PullConsumer, PullError, PullQueue};
pub use push_consumer::{ConsumeResult, PushConsumer};
pub use receipt::{SendError, SendReceipt};
pub use received::{Delivery, ReceivedMessage};
pub use route::RouteError;
pub use simple_consumer::SimpleConsumer;
pub use spread::Spread;
