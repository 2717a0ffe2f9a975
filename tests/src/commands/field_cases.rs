//! `cargo lab field-cases`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use offline::field_case;

/// `cargo lab field-cases`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Folder with the cases, one YAML file for each
    pub folder: PathBuf,
}

/// Judges every case and prints a line for each. Exit code 0 if every judgement is right and every fix works.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let cases = Box::pin(field_case::run_all(&arguments.folder)).await?;
    let mut wrong = 0;
    for (name, outcome) in &cases {
        match outcome {
            Ok(problems) if problems.is_empty() => println!("right  {name}"),
            Ok(problems) => {
                wrong += 1;
                println!("WRONG  {name}");
                for problem in problems {
                    println!("       {problem}");
                }
            }
            Err(error) => {
                wrong += 1;
                println!("WRONG  {name}: {error:#}");
            }
        }
    }
    println!(
        "{} of {} cases are judged right",
        cases.len() - wrong,
        cases.len()
    );
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
