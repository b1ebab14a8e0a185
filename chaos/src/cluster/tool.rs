//! The system's own tools (`ip`, `ss`, `tc`, `nsenter`, `unshare`, `umount`), called with an end in time.

use std::process::Stdio;
use std::time::Duration;

use flotilla_runtime::Runtime;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// None of them has anything to wait for; a busy machine has other things to do.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20);

/// A tool did not do what it should.
#[derive(Debug, thiserror::Error)]
#[error("`{command}` failed: {answer}")]
pub struct ToolError {
    /// What was called.
    pub command: String,
    /// What it said.
    pub answer: String,
}

/// Runs a tool, gives it `input`, and answers with what it printed.
pub(super) async fn call(
    program: &str,
    arguments: &[&str],
    input: &str,
    runtime: &Runtime,
) -> Result<String, ToolError> {
    let failed = |answer| ToolError { command: format!("{program} {}", arguments.join(" ")), answer };
    let work = async {
        let mut child = Command::new(program)
            .args(arguments)
            .env("PATH", search_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
        // One that ends without reading tells why by its status.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = match runtime.timeout(TOOL_TIMEOUT, work).await {
        Ok(output) => output.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(failed(format!("no end within {TOOL_TIMEOUT:?}"))),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(format!("{}; {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// Where tools are looked for: an ordinary user's path may lack the operator's ones.
pub(crate) fn search_path() -> String {
    format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default())
}
