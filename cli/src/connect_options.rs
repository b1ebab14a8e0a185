//! Where a client command finds the cluster.

use clap::Args;
use flotilla_client::{Client, ClientConfig};
use flotilla_message::{GroupName, NameError, TopicName};

/// Options of every client command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where the cluster is")]
pub struct ConnectOptions {
    /// Namesrvs that know the brokers; any that answers will do
    #[arg(
        long,
        global = true,
        env = "FLOTILLA_NAMESRV",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:9876"
    )]
    pub namesrv: Vec<String>,
    /// Brokers to ask instead of a namesrv
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',')]
    pub endpoint: Vec<String>,
}

impl ConnectOptions {
    /// A client's settings; endpoints win over namesrvs.
    pub fn config(&self) -> ClientConfig {
        if self.endpoint.is_empty() {
            ClientConfig::of_namesrv(self.namesrv.iter().cloned())
        } else {
            ClientConfig::of_endpoints(self.endpoint.iter().cloned())
        }
    }

    /// A client; it connects when it is first used.
    pub fn client(&self) -> Result<Client, flotilla_client::ConfigErrors> {
        Client::tonic(self.config())
    }
}

/// For clap: a topic's name.
pub fn topic_name(text: &str) -> Result<TopicName, NameError> {
    TopicName::try_from(text)
}

/// For clap: a consumer group's name.
pub fn group_name(text: &str) -> Result<GroupName, NameError> {
    GroupName::try_from(text)
}
