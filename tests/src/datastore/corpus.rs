//! Runs the cases of a corpus against a real etcd: this tool takes the same steps as Calico's own tool.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use calico_datastore::run::record::PREFIX;
use calico_datastore::v2::Tree;
use serde_json::Value;

use super::case::{Case, Step};
use super::compare::{Judge, Verdict};
use super::etcd::Etcd;
use super::tool::Tool;
use super::trial::COMPLETE;

const READY: &str = "/calico/v1/Ready";

/// Result of one step.
#[derive(Clone, Debug)]
pub struct Came {
    /// The exit code in the corpus's form: 0 is yes, or done.
    pub rc: i64,
    /// Output of the tool.
    pub said: String,
    /// `/calico/v1/Ready`.
    pub ready_v2: Option<String>,
    /// `datastoreReady`.
    pub ready_v3: Option<Value>,
    /// Whether v2 is as before except for Ready.
    pub is_v2_unchanged: bool,
    /// Keys below `/calico/` in v3.
    pub keys: usize,
    /// Reports by name.
    pub reports: BTreeMap<String, String>,
}

/// Runs a case, and compares the results.
pub async fn run(etcd: &Etcd, program: &Path, folder: &Path, case: &Case) -> Result<Verdict> {
    etcd.wipe().await?;
    for (key, value) in &case.v1 {
        match key.strip_suffix('/') {
            Some(directory) => etcd.directory_v2(directory).await?,
            None => etcd.put_v2(key, value).await?,
        }
    }
    for (key, value) in &case.v3pre {
        etcd.put_v3(key, &text(value)).await?;
    }
    let mut before = etcd.dump_v2().await?;
    let mut tree = Tree::of(before.clone());
    tree.directories.extend(etcd.directories_v2().await?);
    let tool = Tool::new(program, &etcd.url(), &etcd.url(), &folder.join(&case.name));
    let mut judge = Judge::new(case, &tree);
    for step in &case.steps {
        if step.step.starts_with("v2") {
            // Another program writes: the comparison includes its effects.
            perform(etcd, &tool, step, &before).await?;
            before = etcd.dump_v2().await?;
            judge.v2_changed();
            continue;
        }
        let came = perform(etcd, &tool, step, &before).await?;
        if !judge.step(step, &came) {
            // From here on the two are in different states, as intended.
            return Ok(judge.verdict());
        }
    }
    judge.end(&everything(etcd).await?);
    Ok(judge.verdict())
}

/// Every key of v3 except those of this tool.
async fn everything(etcd: &Etcd) -> Result<BTreeMap<String, String>> {
    let mut all = etcd.dump_v3("/").await?;
    all.retain(|key, _| !key.starts_with(PREFIX));
    Ok(all)
}

/// The stored form.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

async fn perform(etcd: &Etcd, tool: &Tool, step: &Step, before: &BTreeMap<String, String>) -> Result<Came> {
    let words: Vec<&str> = step.step.split_whitespace().collect();
    let (rc, said) = match words.as_slice() {
        ["needed"] => query_status(tool, needed).await?,
        ["inprogress"] => query_status(tool, in_progress).await?,
        ["start", more @ ..] => {
            run_verb(tool, &["start", "--yes", "--no-hold", "--settle", "0s"], more).await?
        }
        // No controllers run here, and the reference tool does not check for them.
        ["complete", more @ ..] => run_verb(tool, &COMPLETE, more).await?,
        ["abort", more @ ..] => run_verb(tool, &["abort", "--yes"], more).await?,
        ["dry-run", more @ ..] => run_verb(tool, &["dry-run"], more).await?,
        [verb @ ("v2put" | "v3put" | "v3del")] => {
            let key = step
                .key
                .as_deref()
                .with_context(|| format!("step {verb} names no key"))?;
            let value = step.value.as_ref().map(text).unwrap_or_default();
            match *verb {
                "v2put" => etcd.put_v2(key, &value).await?,
                "v3put" => etcd.put_v3(key, &value).await?,
                _ => etcd.delete_v3(key).await?,
            }
            (0, String::new())
        }
        other => bail!("unknown step {other:?}"),
    };
    let mut after = etcd.dump_v2().await?;
    let mut unchanged = before.clone();
    let ready_v2 = after.remove(READY);
    unchanged.remove(READY);
    let v3 = everything(etcd).await?;
    let information = v3.get("/calico/resources/v3/projectcalico.org/clusterinformations/default");
    // Another program may have written a value that is not JSON.
    let information: Option<Value> = information.and_then(|text| serde_json::from_str(text).ok());
    let mut reports = BTreeMap::new();
    if let Ok(files) = std::fs::read_dir(&tool.folder) {
        for file in files.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if let Ok(text) = std::fs::read_to_string(file.path()) {
                reports.insert(name, text);
            }
        }
    }
    Ok(Came {
        rc,
        said,
        ready_v2,
        ready_v3: information
            .map(|value| value["spec"]["datastoreReady"].clone())
            .filter(|ready| !ready.is_null()),
        is_v2_unchanged: after == unchanged,
        keys: v3.len(),
        reports,
    })
}

async fn run_verb(tool: &Tool, first: &[&str], more: &[&str]) -> Result<(i64, String)> {
    let said = tool.run(&[first, more].concat()).await?;
    Ok((i64::from(said.code.unwrap_or(-1) != 0), said.all()))
}

/// The result of `status -o json`; 2 without an answer.
async fn query_status(tool: &Tool, conclude: fn(&Value) -> i64) -> Result<(i64, String)> {
    let said = tool.run(&["status", "-o", "json"]).await?;
    let rc = serde_json::from_str(&said.answer).map_or(2, |status| conclude(&status));
    Ok((rc, said.all()))
}

/// 0: a conversion is needed, 1: not needed, 2: unknown.
fn needed(status: &Value) -> i64 {
    match status["needed"].as_bool() {
        Some(true) => 0,
        Some(false) => 1,
        None => 2,
    }
}

/// 0: a conversion is needed and v2 is paused, 1: not so, 2: unknown.
fn in_progress(status: &Value) -> i64 {
    match (needed(status), status["readyV2"].as_str()) {
        (0, None) | (2, _) => 2,
        (0, Some(ready)) => i64::from(ready == "true"),
        _ => 1,
    }
}
