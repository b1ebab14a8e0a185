//! The settings of a process with several groups: one TOML file, whose top level holds for all, and a table for each group.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml::Value;

use crate::config::{BrokerConfig, ConfigError, ConfigErrors};

/// Groups of one process, at most: a peer's connection has room for a replica of each that reads nothing.
pub const HOSTED_GROUPS_MAX: usize = 15;
/// Name of the tables.
const TABLES: &str = "groups";

/// The settings of each group, from TOML text: one, or one for each `[[groups]]`, whose keys win over those of the top level. A
/// group without a `data_dir` or `backup_dir` has a directory of its name in that of the top level. Nothing is judged yet.
///
/// # Errors
/// If the text is not understood.
pub fn groups_from_toml(text: &str) -> Result<Vec<BrokerConfig>, ConfigError> {
    let malformed = |error: toml::de::Error| ConfigError::Malformed(error.to_string());
    let mut common: toml::Table = text.parse().map_err(malformed)?;
    let Some(tables) = common.remove(TABLES) else {
        return Ok(vec![BrokerConfig::from_toml(text)?]);
    };
    let Value::Array(tables) = tables else {
        return Err(ConfigError::Malformed(format!("{TABLES} is no list of tables: write [[{TABLES}]]")));
    };
    let mut configs = Vec::new();
    for table in tables {
        let Value::Table(own) = table else {
            return Err(ConfigError::Malformed(format!(
                "{TABLES} holds {table}, a table is needed: write [[{TABLES}]]"
            )));
        };
        let [has_dir, has_backup_dir] = ["data_dir", "backup_dir"].map(|key| own.contains_key(key));
        let mut whole = common.clone();
        whole.extend(own);
        let mut config: BrokerConfig = Value::Table(whole).try_into().map_err(malformed)?;
        if !has_dir {
            config.data_dir = config.data_dir.join(&config.group);
        }
        if !has_backup_dir {
            config.backup_dir = config.backup_dir.map(|dir| dir.join(&config.group));
        }
        configs.push(config);
    }
    Ok(configs)
}

/// As [`groups_from_toml`], from a file.
///
/// # Errors
/// If it cannot be read, or is not understood.
pub fn groups_from_file(path: &Path) -> Result<Vec<BrokerConfig>, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    groups_from_toml(&text).map_err(|error| match error {
        ConfigError::Malformed(why) => ConfigError::Malformed(format!("{}: {why}", path.display())),
        other => other,
    })
}

/// Checks the settings of all groups of a process, alone and against each other.
///
/// # Errors
/// Every problem, with the group's name.
pub fn check_groups(configs: &[BrokerConfig]) -> Result<(), ConfigErrors> {
    let mut problems = Vec::new();
    if configs.is_empty() || configs.len() > HOSTED_GROUPS_MAX {
        problems.push(format!("{} groups are named, 1 to {HOSTED_GROUPS_MAX} are allowed", configs.len()));
    }
    let (mut names, mut dirs, mut ports) = (BTreeSet::new(), BTreeSet::<PathBuf>::new(), BTreeSet::new());
    for config in configs {
        let mut tell = |problem: String| problems.push(format!("group {}: {problem}", config.group));
        if let Err(ConfigErrors(own)) = config.validate() {
            own.into_iter().for_each(&mut tell);
        }
        if !names.insert((&config.cluster, &config.group)) {
            tell("it is named twice; a process holds one replica of a group".to_owned());
        }
        if !dirs.insert(config.data_dir.clone()) {
            tell(format!("data_dir {} belongs to another group of this process", config.data_dir.display()));
        }
        if config.client_listen.port() != 0 && !ports.insert(config.client_listen) {
            tell(format!("client_listen {} belongs to another group of this process", config.client_listen));
        }
        if config.client_listen.port() != 0 && config.client_listen == configs[0].peer_listen {
            tell(format!("client_listen {} is the peers' port of this process", config.client_listen));
        }
        if config.peer_listen != configs[0].peer_listen {
            tell(format!(
                "peer_listen is {}, and {} elsewhere: the groups of a process share one",
                config.peer_listen, configs[0].peer_listen
            ));
        }
        if config.metrics_listen != configs[0].metrics_listen {
            tell("metrics_listen differs: the groups of a process share one".to_owned());
        }
        if config.tls != configs[0].tls {
            tell("tls differs: the groups of a process share one".to_owned());
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ConfigErrors(problems)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        cluster = "c"
        data_dir = "/data"
        peer_listen = "127.0.0.1:10912"
        retention_ms = 5000

        [[groups]]
        group = "a"
        client_listen = "127.0.0.1:8081"

        [[groups]]
        group = "b"
        node = 2
        client_listen = "127.0.0.1:8082"
        retention_ms = 6000
        replicas = [
            { node = 1, client = "h:8082", peer = "h:10912" },
            { node = 2, client = "i:8082", peer = "i:10912" },
        ]
    "#;

    #[test]
    fn what_a_group_says_wins_over_what_is_said_for_all() {
        let configs = groups_from_toml(TWO).unwrap();
        assert_eq!(check_groups(&configs), Ok(()));
        let shown = |config: &BrokerConfig| {
            (config.group.clone(), config.node, config.retention_ms, config.data_dir.display().to_string())
        };
        let shown: Vec<_> = configs.iter().map(shown).collect();
        assert_eq!(
            shown,
            [("a".to_owned(), 1, 5000, "/data/a".to_owned()), ("b".to_owned(), 2, 6000, "/data/b".to_owned())]
        );
        assert_eq!((configs[1].replicas.len(), configs[1].cluster.as_str()), (2, "c"));
    }

    #[test]
    fn a_file_without_groups_is_that_of_one() {
        let configs = groups_from_toml("group = \"a\"\ndata_dir = \"/data\"").unwrap();
        assert_eq!((configs.len(), configs[0].data_dir.display().to_string()), (1, "/data".to_owned()));
        let text = groups_from_toml("[[groups]]\ngrup = \"a\"").unwrap_err().to_string();
        assert!(text.contains("grup"), "{text}");
        assert!(groups_from_toml("groups = 3").is_err());
    }

    #[test]
    fn groups_that_would_be_in_each_others_way_are_refused_with_all_reasons() {
        let mut configs = groups_from_toml(TWO).unwrap();
        let first = configs[0].clone();
        configs.push(first.clone());
        configs.push(BrokerConfig {
            group: "d".to_owned(),
            node: 0,
            data_dir: "/elsewhere".into(),
            client_listen: first.peer_listen,
            peer_listen: "127.0.0.1:10913".parse().unwrap(),
            metrics_listen: Some("127.0.0.1:5557".parse().unwrap()),
            tls: flotilla_tls::TlsConfig { reload_interval_ms: 200, ..Default::default() },
            ..first
        });
        let text = check_groups(&configs).unwrap_err().to_string();
        for part in [
            "group a: it is named twice",
            "data_dir /data/a",
            "client_listen 127.0.0.1:8081 belongs",
            "group d: node is 0",
            "is the peers' port",
            "peer_listen is 127.0.0.1:10913",
            "metrics_listen differs",
            "tls differs",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        let many = vec![configs[0].clone(); HOSTED_GROUPS_MAX + 1];
        assert!(check_groups(&many).unwrap_err().to_string().contains("16 groups"));
    }
}
