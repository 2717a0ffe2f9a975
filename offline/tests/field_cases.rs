//! Every case from the field is judged right, and its fix works.

use std::path::Path;

use offline::field_case::run_all;

#[tokio::test]
async fn every_case_from_the_field_is_judged_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/field-cases");
    let mut wrong = Vec::new();
    for (name, outcome) in run_all(&folder).await.unwrap() {
        match outcome {
            Ok(problems) => wrong.extend(problems.into_iter().map(|problem| format!("{name}: {problem}"))),
            Err(error) => wrong.push(format!("{name}: {error:#}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
