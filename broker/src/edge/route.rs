//! Which brokers a client is told of, in the shape in which its kind can fail over.
//!
//! Every replica serves every call, so a route names all of them: by membership, never by health or leadership, because
//! some clients keep their first route for ever and none understands "not the leader".

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use flotilla_proto::v2;

use crate::config::{BrokerConfig, split_host_port};

/// What a route is made of, parsed once from the settings.
#[derive(Debug, Clone)]
pub struct RoutePlan {
    group: String,
    advertised: Option<v2::Address>,
    /// In the order of the replicas' numbers.
    replicas: Vec<(u64, v2::Address)>,
    /// What all addresses are, if they are all the same kind of number.
    scheme: Option<v2::AddressScheme>,
}

/// Who asks for a route.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// `x-mq-language` as it came.
    pub language: &'a str,
    /// `user-agent` as it came.
    pub user_agent: &'a str,
    /// It is our own client library.
    pub is_ours: bool,
}

/// What one broker group has of a topic.
#[derive(Debug, Clone)]
pub struct Part {
    /// The group's replicas.
    pub plan: Arc<RoutePlan>,
    /// Its queues.
    pub queue_count: u32,
    /// What may be done with them.
    pub permission: v2::Permission,
    /// What their messages are.
    pub message_type: v2::MessageType,
}

/// All queues of a topic as this caller should see them: queue 0 of every broker, then queue 1, and so on.
pub fn queues(caller: Caller<'_>, topic: &v2::Resource, parts: &[Part]) -> Vec<v2::MessageQueue> {
    let brokers: Vec<(&Part, Vec<v2::Broker>)> =
        parts.iter().map(|part| (part, part.plan.brokers(caller, part.message_type))).collect();
    let queue = |id: u32, part: &Part, broker: &v2::Broker| v2::MessageQueue {
        topic: Some(topic.clone()),
        id: i32::try_from(id).unwrap_or(i32::MAX),
        permission: part.permission.into(),
        broker: Some(broker.clone()),
        accept_message_types: vec![part.message_type.into()],
    };
    let mut queues = Vec::new();
    for id in 0..parts.iter().map(|part| part.queue_count).max().unwrap_or(0) {
        for (part, brokers) in brokers.iter().filter(|(part, _)| id < part.queue_count) {
            queues.extend(brokers.iter().map(|broker| queue(id, part, broker)));
        }
    }
    queues
}

/// What a push consumer has to poll: each broker once, with the queue number that stands for all of them.
pub fn assignments(caller: Caller<'_>, topic: &v2::Resource, parts: &[Part]) -> Vec<v2::Assignment> {
    let assignment = |part: &Part, broker: v2::Broker| v2::Assignment {
        message_queue: Some(v2::MessageQueue {
            topic: Some(topic.clone()),
            id: -1,
            permission: part.permission.into(),
            broker: Some(broker),
            accept_message_types: vec![part.message_type.into()],
        }),
    };
    let mut assignments = Vec::new();
    for part in parts {
        let brokers = part.plan.brokers(caller, part.message_type);
        assignments.extend(brokers.into_iter().map(|broker| assignment(part, broker)));
    }
    assignments
}

/// How the replicas are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One broker with one DNS name: right for every client.
    Named,
    /// One broker with the addresses of all replicas: for clients whose channels take several.
    Together,
    /// One broker per replica: safe for every client, as each channel has one address.
    Apart,
    /// One broker whose single "host" is a whole address list that grpc-js understands as a target.
    TargetList,
}

impl RoutePlan {
    /// A plan for the replicas of this group: number and `host:port` of each.
    pub fn new(config: &BrokerConfig, addresses: &[(u64, String)]) -> RoutePlan {
        RoutePlan::of_group(&config.group, config.advertise_name.as_deref(), addresses)
    }

    /// A plan for a group's replicas: number and `host:port` of each.
    pub fn of_group(group: &str, advertise_name: Option<&str>, addresses: &[(u64, String)]) -> RoutePlan {
        let address = |text: &str| {
            let (host, port) = split_host_port(text).unwrap_or((text, 0));
            v2::Address { host: host.to_owned(), port: i32::from(port) }
        };
        let replicas: Vec<(u64, v2::Address)> = addresses.iter().map(|(node, text)| (*node, address(text))).collect();
        let all = |scheme| replicas.iter().all(|(_, address)| scheme_of(&address.host) == scheme);
        let scheme = [v2::AddressScheme::IPv4, v2::AddressScheme::IPv6].into_iter().find(|scheme| all(*scheme));
        RoutePlan { group: group.to_owned(), advertised: advertise_name.map(address), replicas, scheme }
    }

    fn shape(&self, caller: Caller<'_>, message_type: v2::MessageType) -> Shape {
        // It goes through the replicas by itself, and knows groups by their names.
        if caller.is_ours {
            return Shape::Together;
        }
        if self.advertised.is_some() {
            return Shape::Named;
        }
        let language = caller.language.to_ascii_uppercase();
        // Their channels go through a list of addresses by themselves, and all sends of a message group stay in one
        // broker, whoever of its replicas is down. Python and C++, over gRPC's C core, send the whole list `a:1,b:2` as
        // `:authority`, which our HTTP/2 server has bent into shape. Go sends it too, but Huffman-coded, which passes
        // unchanged and is refused. Node and C# use a single address anyhow. So these and strangers are given one
        // address a broker.
        let takes_many_addresses = match language.as_str() {
            "JAVA" | "RUST" => true,
            // Brackets of IPv6 are not bent.
            "CPP" | "PYTHON" => self.scheme == Some(v2::AddressScheme::IPv4),
            _ => false,
        };
        let is_grpc_js = language == "HTTP" && caller.user_agent.contains("grpc-node-js");
        match self.scheme {
            // A message group has one candidate queue, so with a broker per replica all its sends stick to one of them.
            Some(v2::AddressScheme::IPv4) if is_grpc_js && message_type == v2::MessageType::Fifo => Shape::TargetList,
            Some(_) if takes_many_addresses => Shape::Together,
            // Also for host names: several of them in one broker are an error for most clients.
            _ => Shape::Apart,
        }
    }

    fn brokers(&self, caller: Caller<'_>, message_type: v2::MessageType) -> Vec<v2::Broker> {
        let broker = |name: String, scheme: v2::AddressScheme, addresses: Vec<v2::Address>| v2::Broker {
            name,
            id: 0,
            endpoints: Some(v2::Endpoints { scheme: scheme.into(), addresses }),
        };
        let group = self.group.clone();
        match self.shape(caller, message_type) {
            Shape::Named => {
                let addresses = self.advertised.iter().cloned().collect();
                vec![broker(group, v2::AddressScheme::DomainName, addresses)]
            }
            Shape::Together => {
                let addresses = self.replicas.iter().map(|(_, address)| address.clone()).collect();
                vec![broker(group, self.scheme.unwrap_or(v2::AddressScheme::IPv4), addresses)]
            }
            Shape::Apart => self
                .replicas
                .iter()
                .map(|(node, address)| {
                    // A replica alone goes by the group's name, as it would for any other client.
                    let name = if self.replicas.len() == 1 { group.clone() } else { format!("{group}-{node}") };
                    broker(name, scheme_of(&address.host), vec![address.clone()])
                })
                .collect(),
            Shape::TargetList => vec![broker(group, v2::AddressScheme::IPv4, vec![self.target_list()])],
        }
    }

    /// `ipv4:A:p,B:p,C` and C's port: joined by ':' it is one target that grpc-js resolves to all of them.
    fn target_list(&self) -> v2::Address {
        let (last, others) = self.replicas.split_last().expect("a group has at least one replica");
        let mut host = "ipv4:".to_owned();
        for (_, address) in others {
            host.push_str(&format!("{}:{},", address.host, address.port));
        }
        host.push_str(&last.1.host);
        v2::Address { host, port: last.1.port }
    }
}

fn scheme_of(host: &str) -> v2::AddressScheme {
    if host.parse::<Ipv4Addr>().is_ok() {
        v2::AddressScheme::IPv4
    } else if host.parse::<Ipv6Addr>().is_ok() {
        v2::AddressScheme::IPv6
    } else {
        v2::AddressScheme::DomainName
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReplicaConfig;

    fn plan(hosts: &[&str], advertise_name: Option<&str>) -> RoutePlan {
        let replicas = hosts
            .iter()
            .zip(1..)
            .map(|(host, node)| ReplicaConfig {
                node,
                client: format!("{host}:808{node}"),
                peer: format!("{host}:1{node}"),
            })
            .collect();
        let advertise_name = advertise_name.map(str::to_owned);
        let config = BrokerConfig { replicas, advertise_name, ..BrokerConfig::default() };
        RoutePlan::new(&config, &config.client_addresses())
    }

    fn three() -> RoutePlan {
        plan(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], None)
    }

    fn part(plan: &RoutePlan, queue_count: u32, permission: v2::Permission, message_type: v2::MessageType) -> Part {
        Part { plan: Arc::new(plan.clone()), queue_count, permission, message_type }
    }

    /// Each queue as `name/id scheme addresses`.
    fn shown(plan: &RoutePlan, language: &str, user_agent: &str, message_type: v2::MessageType) -> Vec<String> {
        let topic = v2::Resource { name: "orders".to_owned(), resource_namespace: String::new() };
        let caller = Caller { language, user_agent, is_ours: false };
        let queues = queues(caller, &topic, &[part(plan, 2, v2::Permission::ReadWrite, message_type)]);
        for queue in &queues {
            assert_eq!(queue.permission, 4);
            assert_eq!(queue.topic.as_ref(), Some(&topic), "the topic is echoed");
            assert_eq!(queue.accept_message_types, vec![i32::from(message_type)]);
        }
        let line = |queue: &v2::MessageQueue| {
            let broker = queue.broker.as_ref().expect("a broker");
            let endpoints = broker.endpoints.as_ref().expect("endpoints");
            assert_eq!(broker.id, 0);
            let addresses: Vec<_> = endpoints.addresses.iter().map(|a| format!("{}:{}", a.host, a.port)).collect();
            format!("{}/{} {} {}", broker.name, queue.id, endpoints.scheme, addresses.join(","))
        };
        queues.iter().map(line).collect()
    }

    #[test]
    fn clients_whose_channels_take_several_addresses_see_one_broker_with_all() {
        for language in ["CPP", "JAVA", "PYTHON", "RUST", "java"] {
            assert_eq!(
                shown(&three(), language, "", v2::MessageType::Fifo),
                [
                    "group-a/0 1 10.0.0.1:8081,10.0.0.2:8082,10.0.0.3:8083",
                    "group-a/1 1 10.0.0.1:8081,10.0.0.2:8082,10.0.0.3:8083"
                ],
                "{language}"
            );
        }
    }

    #[test]
    fn clients_that_use_one_address_see_a_broker_per_replica_with_the_queues_interleaved() {
        let node = ("HTTP", "grpc-node-js/1.14.7");
        for (language, agent) in [node, ("DOTNET", ""), ("GO", ""), ("", ""), ("COBOL", "")] {
            assert_eq!(
                shown(&three(), language, agent, v2::MessageType::Normal),
                [
                    "group-a-1/0 1 10.0.0.1:8081",
                    "group-a-2/0 1 10.0.0.2:8082",
                    "group-a-3/0 1 10.0.0.3:8083",
                    "group-a-1/1 1 10.0.0.1:8081",
                    "group-a-2/1 1 10.0.0.2:8082",
                    "group-a-3/1 1 10.0.0.3:8083"
                ]
            );
        }
    }

    #[test]
    fn node_sees_ordered_topics_behind_one_target_list() {
        assert_eq!(
            shown(&three(), "HTTP", "grpc-node-js/1.14.7", v2::MessageType::Fifo)[0],
            "group-a/0 1 ipv4:10.0.0.1:8081,10.0.0.2:8082,10.0.0.3:8083"
        );
    }

    #[test]
    fn one_dns_name_stands_for_all_and_for_every_client() {
        let named = plan(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], Some("mq.example:8081"));
        for (language, agent) in [("PYTHON", ""), ("HTTP", "grpc-node-js/1"), ("RUST", ""), ("DOTNET", "")] {
            assert_eq!(shown(&named, language, agent, v2::MessageType::Fifo)[0], "group-a/0 3 mq.example:8081");
        }
    }

    #[test]
    fn host_names_are_never_put_together() {
        let hosts = plan(&["a.example", "b.example"], None);
        assert_eq!(shown(&hosts, "PYTHON", "", v2::MessageType::Normal)[0], "group-a-1/0 3 a.example:8081");
        assert_eq!(shown(&hosts, "PYTHON", "", v2::MessageType::Normal).len(), 4);
        let six = plan(&["[::1]", "[fe80::2]"], None);
        assert_eq!(shown(&six, "PYTHON", "", v2::MessageType::Normal).len(), 4, "apart, too");
        assert_eq!(shown(&six, "JAVA", "", v2::MessageType::Normal)[0], "group-a/0 2 ::1:8081,fe80::2:8082");
    }

    #[test]
    fn a_push_consumer_polls_every_broker_once_for_all_queues() {
        let topic = v2::Resource { name: "orders".to_owned(), resource_namespace: String::new() };
        let of = |language| {
            let caller = Caller { language, user_agent: "", is_ours: false };
            assignments(caller, &topic, &[part(&three(), 4, v2::Permission::ReadWrite, v2::MessageType::Normal)])
        };
        assert_eq!(of("JAVA").len(), 1);
        assert_eq!(of("HTTP").len(), 3);
        let ids: Vec<_> = of("HTTP").into_iter().filter_map(|one| one.message_queue).map(|queue| queue.id).collect();
        assert_eq!(ids, [-1, -1, -1]);
    }

    #[test]
    fn the_queues_of_several_groups_are_interleaved_each_with_its_own_permission() {
        let other = RoutePlan::of_group("group-b", None, &[(1, "10.0.1.1:8081".to_owned())]);
        let parts = [
            part(&three(), 1, v2::Permission::Read, v2::MessageType::Normal),
            part(&other, 2, v2::Permission::ReadWrite, v2::MessageType::Normal),
        ];
        let topic = v2::Resource { name: "orders".to_owned(), resource_namespace: String::new() };
        let seen = |language, is_ours| {
            let caller = Caller { language, user_agent: "", is_ours };
            let line = |queue: v2::MessageQueue| {
                format!("{}/{} {}", queue.broker.expect("a broker").name, queue.id, queue.permission)
            };
            queues(caller, &topic, &parts).into_iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(seen("JAVA", false), ["group-a/0 2", "group-b/0 4", "group-b/1 4"]);
        assert_eq!(
            seen("GO", false),
            ["group-a-1/0 2", "group-a-2/0 2", "group-a-3/0 2", "group-b/0 4", "group-b/1 4"]
        );
        assert_eq!(seen("", true), ["group-a/0 2", "group-b/0 4", "group-b/1 4"], "our own library knows groups");
        let caller = Caller { language: "JAVA", user_agent: "", is_ours: false };
        assert_eq!(assignments(caller, &topic, &parts).len(), 2);
    }
}
