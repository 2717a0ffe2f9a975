//! Runs the tests of other programs, shows their output and counts the results.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::assets::{MODULES, go_command};
use crate::end_to_end::Tally;

/// Modules whose sources are in this repository.
const OURS: [&str; 2] = ["flannel", "promlint"];

pub(super) async fn cargo(arguments: &[&str]) -> Result<()> {
    let program = crate::cargo::program();
    run_program(Path::new(&program), arguments, crate::cargo::workspace()?).await
}

pub(super) async fn cargo_tests(packages: &[&str], harness: &[&str]) -> Result<Tally> {
    cargo_tests_with(packages, harness, &[]).await
}

/// Runs `cargo test` and counts the results that each test program reports.
pub(super) async fn cargo_tests_with(
    packages: &[&str],
    harness: &[&str],
    environment: &[(&str, &std::ffi::OsStr)],
) -> Result<Tally> {
    // The command builds like the lab itself and never chooses packages: dependencies get the features of the whole
    // workspace and are compiled once.
    let mut arguments = vec!["test", "--no-fail-fast"];
    arguments.extend(packages);
    arguments.push("--");
    arguments.extend(harness);
    let mut command = Command::new(crate::cargo::program());
    command
        .args(&arguments)
        .current_dir(crate::cargo::workspace()?)
        .envs(environment.iter().copied());
    let (success, text) = stream(command)
        .await
        .with_context(|| format!("cargo {}", arguments.join(" ")))?;
    let tally = count_tests(&text);
    if !success && tally.failed.is_empty() {
        bail!("cargo {} failed before any test ran", arguments.join(" "));
    }
    if tally.passed == 0 {
        bail!("cargo {} ran no test", arguments.join(" "));
    }
    Ok(tally)
}

/// Reads lines such as `test a::b ... FAILED` and `test result: ok. 3 passed; …`.
fn count_tests(text: &str) -> Tally {
    let mut tally = Tally::default();
    for line in text.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            let passed = result
                .split_once(" passed")
                .and_then(|(before, _)| before.rsplit(' ').next())
                .and_then(|number| number.parse::<usize>().ok());
            tally.passed += passed.unwrap_or_default();
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|line| line.strip_suffix(" ... FAILED"))
        {
            tally.failed.push(name.to_owned());
        }
    }
    tally
}

/// Runs `go vet` and `go test` on the programs of this repository, as the build compiles them.
pub(super) async fn go_tests() -> Result<Tally> {
    let mut tally = Tally::default();
    for module in MODULES.iter().filter(|module| OURS.contains(&module.folder)) {
        for what in ["vet", "test"] {
            let name = format!("go {what} of {}", module.folder);
            let checked = needed(go_command(module, &module.check(what)), &name).await;
            tally.count(name, checked);
        }
    }
    Ok(tally)
}

/// Runs a program in this folder; an exit code other than 0 is an error.
pub(super) async fn run_program(program: &Path, arguments: &[&str], folder: PathBuf) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    let what = format!("{} {}", program.display(), arguments.join(" "));
    needed(command, &what).await
}

async fn needed(command: Command, what: &str) -> Result<()> {
    let (success, _) = stream(command).await.with_context(|| what.to_owned())?;
    if !success {
        bail!("{what} failed: see above");
    }
    Ok(())
}

/// Runs a command, shows its output as it arrives, and returns its standard output. Dropping the future ends the
/// command and the processes that it has started.
async fn stream(mut command: Command) -> Result<(bool, String)> {
    crate::cargo::forget_caller(command.as_std_mut());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = Group(child.id().map(i32::try_from).transpose()?.map(Pid::from_raw));
    let stdout = child.stdout.take().context("its output")?;
    let mut lines = BufReader::new(stdout).lines();
    let mut text = String::new();
    while let Some(line) = lines.next_line().await? {
        println!("    {line}");
        text.push_str(&line);
        text.push('\n');
    }
    let status = child.wait().await?;
    group.ended();
    Ok((status.success(), text))
}

/// A command and the processes that it has started, unless they left its group. Dropping it kills all of them: a test
/// program outlives the cargo that runs it.
struct Group(Option<Pid>);

impl Group {
    /// The command has ended, and its number may now be another process's.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // A process that has ended meanwhile cannot be killed.
            killpg(leader, Signal::SIGKILL).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[tokio::test]
    async fn a_dropped_command_is_ended_with_the_processes_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let mut command = Command::new("sh");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        command.args(["-c", &script]);
        let number = async {
            loop {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                if text.ends_with('\n') {
                    break text.trim().to_owned();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let number = tokio::select! {
            ended = stream(command) => panic!("the command has ended: {ended:?}"),
            number = number => number,
        };
        // The process is killed but perhaps not yet reaped: then it has no command line.
        let place = format!("/proc/{number}/cmdline");
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::read(&place).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < deadline, "process {number} runs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    fn tests_are_counted_from_the_output_of_their_programs() {
        let tally = count_tests(
            "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, needs root\n\
             test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
             test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured\n",
        );
        assert_eq!((tally.passed, tally.failed), (5, vec!["c".to_owned()]));
    }
}
