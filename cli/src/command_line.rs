//! What can be written behind `flotilla`: the global options and the list of commands.

use clap::{Parser, Subcommand};
use flotilla_raft_log::CORE_LOG_LEVELS;
use flotilla_runtime::Runtime;

use crate::commands::{admin, backup, bench, broker, demo, dev, log, namesrv, receive, send};
use crate::failure::Failure;

/// A message broker cluster with RocketMQ's semantics in which a broker group is one Raft group.
#[derive(Debug, Parser)]
#[command(name = "flotilla", version, propagate_version = true, after_help = EXAMPLES)]
pub struct CommandLine {
    /// What to log on stderr: error, warn, info, debug, trace, or directives such as
    /// `flotilla_broker=debug,info` [default: info for broker and namesrv, with less of openraft; warn for the rest]
    #[arg(long, global = true, env = "FLOTILLA_LOG", value_name = "FILTER", help_heading = LOGGING)]
    pub log_level: Option<String>,
    /// Log one JSON object a line
    #[arg(long, global = true, help_heading = LOGGING)]
    pub log_json: bool,
    #[command(subcommand)]
    pub command: Command,
}

const LOGGING: &str = "Logging";
const EXAMPLES: &str = "\
Examples:
  flotilla demo                                    kill leaders, lose nothing, see for yourself
  flotilla dev                                     a namesrv and three replicas to develop against
  flotilla admin topic create orders               then, while dev runs:
  printf 'a\\nb\\nc\\n' | flotilla send --topic orders
  flotilla receive --topic orders --group billing

Exit codes: 0 done, 1 failed, 2 the command line or a config was not understood, 70 a replica stopped itself";

#[derive(Debug, Subcommand)]
pub enum Command {
    Dev(dev::DevArguments),
    Demo(demo::DemoArguments),
    Namesrv(namesrv::NamesrvArguments),
    Broker(Box<broker::BrokerArguments>),
    Admin(admin::AdminArguments),
    Send(send::SendArguments),
    Receive(receive::ReceiveArguments),
    Bench(bench::BenchArguments),
    Log(log::LogArguments),
    Backup(backup::BackupArguments),
}

/// What real servers log unless told otherwise.
pub fn server_log_level() -> String {
    format!("info,{CORE_LOG_LEVELS}")
}

impl Command {
    /// Real servers tell what they do; the rest speaks up only when something is wrong.
    pub fn log_level_default(&self) -> String {
        match self {
            Command::Namesrv(_) | Command::Broker(_) => server_log_level(),
            // A group that is being founded is full of votes that are not given.
            Command::Dev(_) => "warn,openraft=error".to_owned(),
            Command::Demo(_)
            | Command::Admin(_)
            | Command::Send(_)
            | Command::Receive(_)
            | Command::Bench(_)
            | Command::Log(_)
            | Command::Backup(_) => "warn".to_owned(),
        }
    }

    pub async fn run(self, runtime: Runtime) -> Result<(), Failure> {
        match self {
            Command::Dev(arguments) => dev::run(arguments, runtime).await,
            Command::Demo(arguments) => demo::run(arguments, runtime).await,
            Command::Namesrv(arguments) => namesrv::run(arguments, runtime).await,
            Command::Broker(arguments) => broker::run(*arguments, runtime).await,
            Command::Admin(arguments) => admin::run(arguments, runtime).await,
            Command::Send(arguments) => send::run(arguments, runtime).await,
            Command::Receive(arguments) => receive::run(arguments, runtime).await,
            Command::Bench(arguments) => bench::run(arguments, runtime).await,
            Command::Log(arguments) => log::run(arguments, runtime).await,
            Command::Backup(arguments) => backup::run(arguments, runtime).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(arguments: &[&str]) -> String {
        CommandLine::try_parse_from(arguments).expect_err("these arguments are wrong").to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let text = refused(&["flotilla", "demo", "--messages", "0"]);
        assert!(text.contains("'0'") && text.contains("1..="), "{text}");
        let text = refused(&["flotilla", "demo", "--size", "4MB"]);
        assert!(text.contains("'4MB'") && text.contains("MiB"), "{text}");
        let text = refused(&["flotilla", "receive", "--topic", "t", "--group", "g", "--timeout", "5"]);
        assert!(text.contains("'5'") && text.contains("unit"), "{text}");
        let text = refused(&["flotilla", "receive", "--topic", "t t", "--group", "g"]);
        assert!(text.contains("t t"), "{text}");
        let text = refused(&["flotilla", "bench", "--local", "2"]);
        assert!(text.contains("'2'") && text.contains('1') && text.contains('3'), "{text}");
        let text = refused(&["flotilla", "send", "--topic", "t", "--property", "novalue"]);
        assert!(text.contains("novalue") && text.contains("KEY=VALUE"), "{text}");
    }

    #[test]
    fn an_unknown_flag_or_command_is_named() {
        assert!(refused(&["flotilla", "demo", "--mesages", "5"]).contains("--mesages"));
        assert!(refused(&["flotilla", "dmeo"]).contains("dmeo"));
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        let text = refused(&["flotilla", "bench", "--local", "3", "--endpoint", "a:1"]);
        assert!(text.contains("--local") && text.contains("--endpoint"), "{text}");
        let text = refused(&["flotilla", "bench"]);
        assert!(text.contains("--local") && text.contains("--endpoint"), "{text}");
    }
}
