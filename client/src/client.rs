//! The root of everything a process does with a cluster: one client, from which the rest is made.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{MessageId, TopicName};
use flotilla_proto::client::{CallOptions, Connector, TonicConnector};
use flotilla_proto::{Metadata, metadata};
use flotilla_runtime::{Instant, Runtime, Task};
use flotilla_tls::TlsLinks;

use crate::admin_client::AdminClient;
use crate::broadcast_consumer::{BroadcastConsumer, BroadcastError};
use crate::config::{
    BroadcastConsumerConfig, ClientConfig, ConfigErrors, ProducerConfig, PullConsumerConfig, PushConsumerConfig,
    SimpleConsumerConfig,
};
use crate::failover::Failover;
use crate::membership::Memberships;
use crate::message_ids::MessageIds;
use crate::producer::Producer;
use crate::pull_consumer::PullConsumer;
use crate::push_consumer::{ConsumeResult, PushConsumer};
use crate::received::{Delivery, ReceivedMessage};
use crate::replicas::Replicas;
use crate::route_cache::RouteCache;
use crate::simple_consumer::SimpleConsumer;

/// A connection to a cluster. Cheap to clone; nothing is connected before it is needed.
///
/// Routes are cached and asked for again in the background; that ends with the last clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    _refresher: Arc<Task<()>>,
}

/// What all parts of one client use.
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) runtime: Runtime,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) client_id: String,
    pub(crate) ids: MessageIds,
    pub(crate) routes: RouteCache,
    pub(crate) memberships: Memberships,
}

impl Client {
    /// A client over a connector of one's own; a simulation hands in its.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting.
    pub fn connect(
        config: ClientConfig,
        runtime: Runtime,
        connector: Arc<dyn Connector>,
    ) -> Result<Client, ConfigErrors> {
        config.validate()?;
        // Names no host: what identifies a client is the cluster's affair, not the machine's.
        let client_id = format!("flotilla@{:016x}", runtime.random_u64());
        let shared = Arc::new(Shared {
            routes: RouteCache::new(),
            memberships: Memberships::default(),
            metadata: Arc::new(metadata::of_client(&client_id, env!("CARGO_PKG_VERSION"))),
            ids: MessageIds::new(&runtime),
            client_id,
            config,
            runtime: runtime.clone(),
            connector,
        });
        let refreshed = shared.clone();
        let refresher = runtime.spawn("client route refresh", async move { refreshed.keep_routes_fresh().await });
        Ok(Client { shared, _refresher: Arc::new(refresher) })
    }

    /// A client over real sockets. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting, certificates and keys that are not usable among them.
    pub fn tonic(config: ClientConfig) -> Result<Client, ConfigErrors> {
        config.validate()?;
        let runtime = Runtime::tokio();
        let tls = match &config.tls {
            Some(credentials) => TlsLinks::of_client(credentials.clone(), &runtime)
                .map_err(|error| ConfigErrors { problems: vec![error.to_string()] })?,
            None => TlsLinks::plain(),
        };
        let connector = Arc::new(TonicConnector::with_tls(runtime.clone(), tls));
        Client::connect(config, runtime, connector)
    }

    /// A producer.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting.
    pub fn producer(&self, config: ProducerConfig) -> Result<Producer, ConfigErrors> {
        Producer::new(self.clone(), config)
    }

    /// A consumer that asks for messages and acknowledges them one by one.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting.
    pub fn simple_consumer(&self, config: SimpleConsumerConfig) -> Result<SimpleConsumer, ConfigErrors> {
        SimpleConsumer::new(self.clone(), config)
    }

    /// A consumer that reads the queues it is told to, by offset.
    pub fn pull_consumer(&self, config: PullConsumerConfig) -> PullConsumer {
        PullConsumer::new(self.clone(), config)
    }

    /// A consumer that calls `listener` for each message; it runs until it is shut down or dropped.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting.
    pub fn push_consumer<L, F>(&self, config: PushConsumerConfig, listener: L) -> Result<PushConsumer, ConfigErrors>
    where
        L: Fn(ReceivedMessage) -> F + Send + Sync + 'static,
        F: Future<Output = ConsumeResult> + Send + 'static,
    {
        PushConsumer::start(self.clone(), config, listener)
    }

    /// A consumer whose every instance gets every message, for each of which `listener` is called; it runs until it is
    /// shut down or dropped.
    ///
    /// # Errors
    /// [`BroadcastError`]; nothing runs then.
    pub async fn broadcast_consumer<L, F>(
        &self,
        config: BroadcastConsumerConfig,
        listener: L,
    ) -> Result<BroadcastConsumer, BroadcastError>
    where
        L: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = ConsumeResult> + Send + 'static,
    {
        BroadcastConsumer::start(self.clone(), config, listener).await
    }

    /// The operator's calls.
    pub fn admin(&self) -> AdminClient {
        AdminClient::new(self.clone())
    }

    /// The id that the brokers know this client by.
    pub fn client_id(&self) -> &str {
        &self.shared.client_id
    }

    /// A new message id, for an application that wants to know it before it sends.
    pub fn new_message_id(&self) -> MessageId {
        self.shared.ids.next(&self.shared.runtime)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("client_id", &self.shared.client_id).finish_non_exhaustive()
    }
}

impl Shared {
    /// The options of a call that may take so long.
    pub(crate) fn options(&self, timeout: Duration) -> CallOptions {
        CallOptions::within(timeout).with_metadata(self.metadata.clone())
    }

    /// When a send, an ack or an admin call that begins now gives up.
    pub(crate) fn deadline(&self) -> Instant {
        self.runtime.now() + self.config.send_deadline
    }

    /// The retry loop for a call about `topic`; `extra` is the time the call itself may wait at the broker.
    pub(crate) fn failover<'a>(
        &'a self,
        replicas: &'a Replicas,
        deadline: Instant,
        extra: Duration,
        want_route: &'a (dyn Fn() + Send + Sync),
    ) -> Failover<'a> {
        Failover {
            runtime: &self.runtime,
            replicas,
            deadline,
            request_timeout: self.config.request_timeout + extra,
            attempt_timeout: self.config.attempt_timeout + extra,
            want_route,
            reads: None,
        }
    }

    /// Marks a topic's route as worth asking for again.
    pub(crate) fn want_route(&self, topic: &TopicName) {
        self.routes.want(topic);
    }
}
