//! `flotilla`: one binary for servers, clients and the demonstration that messages survive.

mod allocator;
mod base64;
mod command_line;
mod commands;
mod connect_options;
mod failure;
mod hints;
mod lines;
mod logging;
mod output;
mod progress;
mod quantity;
mod ready_line;
mod stop_signal;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use flotilla_runtime::Runtime;

use crate::command_line::CommandLine;
use crate::failure::{EXIT_OK, Failure};

fn main() -> ExitCode {
    allocator::settle();
    let exit = match run(CommandLine::parse()) {
        Ok(()) => EXIT_OK,
        Err(failure) => {
            // Where stderr cannot be written, the exit code still says it.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.exit()
        }
    };
    ExitCode::from(exit)
}

fn run(command_line: CommandLine) -> Result<(), Failure> {
    let level = command_line.log_level.clone().unwrap_or_else(|| command_line.command.log_level_default());
    logging::start(&level, command_line.log_json).map_err(Failure::usage)?;
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = threads.block_on(command_line.command.run(Runtime::tokio()));
    // A read of stdin cannot be cancelled, and a node that failed must not wait for its own tasks.
    threads.shutdown_background();
    result
}
