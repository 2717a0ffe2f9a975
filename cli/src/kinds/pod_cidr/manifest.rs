//! Manifests of Migrations, with comments that say where they come from and in which order they run.

use api::migration::PodCidr;
use serde::Serialize;

use super::route::End;
use crate::error::CliError;
use crate::render::table::{table, wrap};

/// Width of the comments.
const WIDTH: usize = 108;

/// A Migration as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its name.
    pub name: String,
    /// What it does.
    pub pod_cidr: PodCidr,
}

/// What is written down beside the Migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Name of the cluster, where it is known.
    pub cluster: Option<String>,
    /// The ranges, and who says them.
    pub ranges: Vec<(&'static str, End)>,
    /// What else has to be known of where they come from.
    pub note: Option<String>,
}

/// `desired` is not among it: where it is not said it is Plan, and who applies the file once more while the Migration is under
/// way does not stop it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'hop> {
    api_version: String,
    kind: &'static str,
    metadata: Metadata<'hop>,
    spec: Spec<'hop>,
}

#[derive(Serialize)]
struct Metadata<'hop> {
    name: &'hop str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'hop> {
    pod_cidr: &'hop PodCidr,
}

impl Hop {
    fn yaml(&self) -> Result<String, CliError> {
        yaml_serde::to_string(&Manifest {
            api_version: format!("{}/{}", api::names::GROUP, api::names::VERSION),
            kind: "Migration",
            metadata: Metadata { name: &self.name },
            spec: Spec {
                pod_cidr: &self.pod_cidr,
            },
        })
        .map_err(CliError::Yaml)
    }
}

/// One Migration that does it all.
pub fn one(origin: &Origin, hop: &Hop) -> Result<String, CliError> {
    let mut text = head(origin);
    text.push_str(&comment(
        "Applied, it changes nothing: it is checked and planned (`desired` is Plan where it is not said). This shows the plan, asks, and \
         starts it:",
    ));
    text.push_str(&listed(&format!("kubectl replumb apply {}", hop.name)));
    text.push_str(&hop.yaml()?);
    Ok(text)
}

/// Two Migrations, one after the other; `only` leaves the other one away.
pub fn two(origin: &Origin, hops: &[Hop; 2], only: Option<usize>) -> Result<String, CliError> {
    let mut text = head(origin);
    text.push_str(&order(hops));
    let chosen = hops
        .iter()
        .enumerate()
        .filter(|(index, _)| only.is_none_or(|only| only == *index));
    for (place, (index, hop)) in chosen.enumerate() {
        text.push_str(if place == 0 { "#\n" } else { "---\n" });
        text.push_str(&comment(&of_two(hops, index)));
        text.push_str(&hop.yaml()?);
    }
    Ok(text)
}

fn head(origin: &Origin) -> String {
    let of = origin
        .cluster
        .as_ref()
        .map(|name| format!(" of cluster {name}"))
        .unwrap_or_default();
    let mut text = comment(&format!(
        "Another range for the pods{of}, written by `kubectl replumb generate pod-cidr`."
    ));
    let rows: Vec<Vec<String>> = origin
        .ranges
        .iter()
        .map(|(what, end)| vec![(*what).to_owned(), end.range.to_string(), end.name.clone()])
        .collect();
    text.push_str(&listed(&table(&[], &rows)));
    if let Some(note) = &origin.note {
        text.push_str(&comment(note));
    }
    text.push_str("#\n");
    text
}

/// In which order they run, and what becomes of them when both are applied.
fn order(hops: &[Hop; 2]) -> String {
    let [first, second] = hops;
    let mut text = comment(
        "Calico keeps no two pools that share addresses: the pods go by a temporary range, in two hops. Each is a Migration of its \
         own, and the second starts when the first is Completed:",
    );
    let rows: Vec<Vec<String>> = hops
        .iter()
        .enumerate()
        .map(|(index, hop)| {
            let way = format!("{} → {}", hop.pod_cidr.from, hop.pod_cidr.to);
            vec![(index + 1).to_string(), hop.name.clone(), way]
        })
        .collect();
    text.push_str(&listed(&table(&[], &rows)));
    text.push_str(&comment(&format!(
        "Applied, they change nothing: each is checked and planned (`desired` is Plan where it is not said). The coordinator works on \
         one Migration at a time, the oldest that is not over. Applied together, {second} is Refused (AnotherMigration) until {first} \
         is Completed, which is after its soak (podCidr.soakSeconds, a day where it is not said); then it is checked and planned by \
         itself. Start each by its name, the second one once the first is Completed:",
        first = first.name,
        second = second.name,
    )));
    let commands = hops
        .iter()
        .map(|hop| format!("kubectl replumb apply {} --watch\n", hop.name))
        .collect::<String>();
    text.push_str(&listed(&commands));
    text
}

fn of_two(hops: &[Hop; 2], index: usize) -> String {
    let [first, second] = hops;
    let PodCidr { from, to, .. } = &hops[index].pod_cidr;
    let what = if index == 0 {
        format!("the pods leave {from} for {to}, a range for the time between. Apply it first.")
    } else {
        format!(
            "the pods leave {from} for {to}. Before {first} is Completed there is no IPPool of {from} to leave, and it is refused. \
             Applied before {first} it stands in its way, as the older one: `kubectl delete migration {second}` mends that.",
            first = first.name,
            second = second.name
        )
    };
    format!("Hop {} of 2: {what}", index + 1)
}

/// A text as comments. What comes out of a file cannot end the comment: every blank is a plain one, and every control character a
/// question mark.
fn comment(text: &str) -> String {
    wrap(&plain(text), WIDTH)
        .into_iter()
        .map(|line| format!("# {line}\n"))
        .collect()
}

/// Lines as comments, indented.
fn listed(text: &str) -> String {
    text.lines()
        .map(|line| format!("#   {}\n", plain(line)))
        .collect()
}

fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            letter if letter.is_whitespace() => ' ',
            letter if letter.is_control() => '?',
            letter => letter,
        })
        .collect()
}
