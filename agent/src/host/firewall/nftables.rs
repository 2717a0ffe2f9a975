//! Names of nftables tables and chains, read from nft's text output.

use std::collections::BTreeSet;

use super::detour::{self, Detour};
use super::frames;
use crate::host::program::{ProgramError, command_line, lines};

/// Names of all nftables tables, and of the selected chains, without rules: a node may have hundreds of thousands of chains.
#[derive(Debug, Default)]
pub struct Nftables {
    /// Family and name.
    tables: BTreeSet<(String, String)>,
    /// Family, table, and the common name of the selected chain.
    chains: BTreeSet<(String, String, &'static str)>,
    /// Chains of replumb's own table, each named after a link.
    frame_rules: BTreeSet<String>,
    /// Chains of replumb's table for a detour around a bridge.
    detour: BTreeSet<String>,
}

/// The position in a listing.
#[derive(Debug)]
struct Position {
    /// Family and name of the table.
    table: (String, String),
    /// Whether the line is within a comment that has several lines. Its text may look like a line of nft.
    in_comment: bool,
}

impl Nftables {
    /// Whether a table of this family and name exists.
    pub fn has_table(&self, family: &str, table: &str) -> bool {
        self.tables.contains(&(family.to_owned(), table.to_owned()))
    }

    /// Whether a table of this family has a chain with this common name.
    pub fn has_chain(&self, family: &str, table: &str, chain: &'static str) -> bool {
        self.chains
            .contains(&(family.to_owned(), table.to_owned(), chain))
    }

    /// Links for which replumb accepts frames to other MAC addresses, in order.
    pub fn frame_rules(&self) -> Vec<String> {
        self.frame_rules.iter().cloned().collect()
    }

    /// The detour around a bridge that exists; `None` if there is none.
    pub fn detour(&self) -> Option<Detour> {
        let chains = self.detour.iter().map(String::as_str);
        self.has_table(detour::FAMILY, detour::TABLE)
            .then(|| Detour::of(chains))
    }

    /// Reads tables and chains. `select` returns the common name for a selected chain: of several chains with one common name,
    /// each table has one entry.
    ///
    /// Reads nft's text output, not JSON: its lines are read one by one, so that at most one of hundreds of thousands of chains
    /// is held.
    ///
    /// # Errors
    ///
    /// nft fails, or prints a line that cannot be read.
    pub async fn read(select: impl Fn(&str) -> Option<&'static str>) -> Result<Self, ProgramError> {
        let mut found = Self::default();
        // The list of chains has no tables without chains.
        let arguments = ["list tables; list chains"];
        let (mut position, mut problem) = (None, None);
        lines("nft", &arguments, |line| {
            if found.take(line, &mut position, &select).is_none() {
                problem.get_or_insert_with(|| format!("line {line:?}"));
            }
            false
        })
        .await?;
        match problem {
            None => Ok(found),
            Some(problem) => Err(ProgramError::Answer {
                command: command_line("nft", &arguments),
                problem,
            }),
        }
    }

    /// Parses one line: `table ip nat`, with or without `{` at its end; `chain POSTROUTING {` in a table; the content of a chain,
    /// a closing bracket, or a comment. `None` for any other line.
    fn take(
        &mut self,
        line: &str,
        position: &mut Option<Position>,
        select: impl Fn(&str) -> Option<&'static str>,
    ) -> Option<()> {
        // nft has no escapes: a quotation mark begins or ends a text.
        let is_half_quoted = line.matches('"').count() % 2 == 1;
        if let Some(position) = position.as_mut().filter(|position| position.in_comment) {
            position.in_comment = !is_half_quoted;
        } else if let Some(named) = line.strip_prefix("table ") {
            let (family, name) = named.strip_suffix(" {").unwrap_or(named).split_once(' ')?;
            let named = (family.to_owned(), name.to_owned());
            self.tables.insert(named.clone());
            *position = Some(Position {
                table: named,
                in_comment: false,
            });
        } else if let Some(named) = line.strip_prefix("\tchain ") {
            let (family, table) = &position.as_ref()?.table;
            let own = match (family.as_str(), table.as_str()) {
                (frames::FAMILY, frames::TABLE) => Some(&mut self.frame_rules),
                (detour::FAMILY, detour::TABLE) => Some(&mut self.detour),
                _ => None,
            };
            if let Some(chains) = own {
                chains.insert(named.strip_suffix(" {")?.to_owned());
            }
            if let Some(known) = select(named.strip_suffix(" {")?) {
                self.chains.insert((family.clone(), table.clone(), known));
            }
        } else if !["\t\t", "\t}", "}", "#"]
            .iter()
            .any(|start| line.starts_with(start))
            && !line.trim().is_empty()
        {
            return None;
        } else if let Some(position) = position {
            position.in_comment = is_half_quoted;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
