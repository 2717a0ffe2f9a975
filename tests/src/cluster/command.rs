//! Runs other programs; errors include their output.

use std::ffi::OsStr;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Runs a program to its end and returns its standard output; an exit code other than 0 is an error.
pub async fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    let output = output(program, arguments).await?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            line(program, arguments),
            output.status,
            output_text(&output)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end, with any exit code.
pub async fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<Output> {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("run `{}`", line(program, arguments)))
}

/// Runs a program with text on its standard input.
pub async fn run_with_input<S: AsRef<OsStr>>(program: &str, arguments: &[S], input: &str) -> Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("run `{}`", line(program, arguments)))?;
    let mut stdin = child
        .stdin
        .take()
        .context("open the standard input of the program")?;
    let (written, output) = tokio::join!(
        async move {
            let written = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
            written
        },
        child.wait_with_output()
    );
    let output = output.with_context(|| format!("wait for `{}`", line(program, arguments)))?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            line(program, arguments),
            output.status,
            output_text(&output)
        );
    }
    written.with_context(|| format!("write the input of `{}`", line(program, arguments)))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let words = arguments
        .iter()
        .map(|argument| argument.as_ref().to_string_lossy().into_owned());
    std::iter::once(program.to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

fn output_text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    let text = if error.trim().is_empty() {
        String::from_utf8_lossy(&output.stdout)
    } else {
        error
    };
    text.trim().to_owned()
}
