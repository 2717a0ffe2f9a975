//! The house: lengths and names of files, imports between siblings, words, and what a new kind touches (docs/adding-a-kind.md).

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Crates of the product.
const CRATES: [&str; 18] = [
    "engine",
    "calico",
    "policy",
    "kinds/flannel-to-calico",
    "kinds/pod-cidr",
    "kinds/service-cidr",
    "kinds/calico-datastore",
    "kinds/example",
    "api",
    "agent",
    "coordinator",
    "cli",
    "datastore",
    "runtime",
    "listening",
    "crash-point",
    "memory-api",
    "offline",
];

/// Folders with the sources of the lab, whose words follow docs/style.md too.
const LAB: [&str; 4] = [
    "tests/src",
    "tests/standin/src",
    "tests/traffic/src",
    "tests/tests",
];

/// Most lines of a file, without the tests at its end.
const LINES: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Packages beside the product.
const OTHERS: [&str; 4] = ["tests", "tests/standin", "tests/traffic", "tests/explore"];

/// Names of files and folders that have only tests, or only what tests need (tests/README.md).
const OF_TESTS: [&str; 4] = ["tests", "scenarios", "walk", "fixture"];

/// Whether a file or a folder has only tests, or only what tests need.
fn is_test(name: &str) -> bool {
    let name = name.trim_end_matches(".rs");
    OF_TESTS.contains(&name) || name.starts_with("fake_")
}

/// The Rust files below a folder: path and text, without tests.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if is_test(&name) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, without_tests(&text).to_owned()));
            }
        }
    }
    found.sort();
    found
}

/// The text before the module with the tests.
fn without_tests(text: &str) -> &str {
    text.find("\n#[cfg(test)]\nmod tests")
        .map_or(text, |end| &text[..end])
}

/// All Rust files below a folder, with their path in it.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn files_have_the_names_of_the_convention() {
    let mut odd = Vec::new();
    for name in CRATES.iter().chain(&OTHERS) {
        for path in all_files(&root().join(name).join("src")) {
            let stem = path.file_stem().unwrap().to_string_lossy();
            let ends = OF_TESTS.iter().any(|name| stem.ends_with(&format!("_{name}")));
            if stem == "mod" || ends {
                odd.push(format!("{}: another name", path.display()));
            }
            if fs::read_to_string(&path).unwrap().contains("\n#[path") {
                odd.push(format!("{}: #[path]", path.display()));
            }
        }
    }
    assert!(odd.is_empty(), "see tests/README.md:\n{}", odd.join("\n"));
}

#[test]
fn no_file_is_longer_than_the_limit() {
    let mut long = Vec::new();
    for name in CRATES {
        for (path, text) in sources(&root().join(name).join("src")) {
            let lines = text.lines().count();
            if lines > LINES {
                long.push(format!("{}: {lines} lines, at most {LINES}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "split by job:\n{}", long.join("\n"));
}

type Module = Vec<String>;

/// The modules of a crate, by their path in it, with their text.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let of = |path: &Path| -> Module {
        let path = path.strip_prefix(source).unwrap().with_extension("");
        let mut parts: Module = path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if parts == ["lib"] || parts == ["main"] {
            parts.pop();
        }
        parts
    };
    let mut found = BTreeMap::new();
    for (path, text) in sources(source) {
        let code: Vec<&str> = text
            .lines()
            .map(|line| line.split("//").next().unwrap())
            .collect();
        found.insert(of(&path), code.join("\n"));
    }
    found
}

/// Every path of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        found.push(format!("{prefix}{}", tree.split(" as ").next().unwrap().trim()));
        return;
    };
    let prefix = format!("{prefix}{}", tree[..open].trim());
    let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut start) = (0_i32, 0);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&prefix, &inner[start..at], found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths of the crate that a module names: imports, and paths in the code.
fn named(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut statement: Option<String> = None;
    for line in code.lines().map(str::trim) {
        let starts = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        if let Some(tree) = starts.iter().find_map(|start| line.strip_prefix(start)) {
            statement = Some(tree.to_owned());
        } else if let Some(tree) = &mut statement {
            tree.push_str(line);
        }
        if line.ends_with(';')
            && let Some(tree) = statement.take()
        {
            expand("", tree.trim_end_matches(';'), &mut paths);
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let end =
                code[at..].find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'));
            paths.push(
                code[at..end.map_or(code.len(), |end| at + end)]
                    .trim_end_matches(':')
                    .to_owned(),
            );
        }
    }
    paths
}

/// The module that a path names, seen from a module; `None` if the path leaves the crate.
fn resolve(of: &Module, path: &str, modules: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts = path.split("::").peekable();
    let mut at = match *parts.peek()? {
        "crate" => {
            parts.next();
            Module::new()
        }
        "self" => {
            parts.next();
            of.clone()
        }
        "super" => {
            let mut at = of.clone();
            while parts.next_if_eq(&"super").is_some() {
                at.pop()?;
            }
            at
        }
        _ => return None,
    };
    for part in parts {
        at.push(part.to_owned());
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
    }
    Some(at)
}

#[test]
fn siblings_do_not_import_each_other_in_a_circle() {
    let mut circles = Vec::new();
    for name in CRATES {
        let modules = modules(&root().join(name).join("src"));
        // From one child of a folder to another one.
        let mut edges: BTreeMap<(Module, String), BTreeSet<String>> = BTreeMap::new();
        for (of, code) in &modules {
            for target in named(code).iter().filter_map(|path| resolve(of, path, &modules)) {
                let common = of
                    .iter()
                    .zip(&target)
                    .take_while(|(one, other)| one == other)
                    .count();
                if let (Some(from), Some(to)) = (of.get(common), target.get(common)) {
                    let key = (of[..common].to_vec(), from.clone());
                    edges.entry(key).or_default().insert(to.clone());
                }
            }
        }
        for (folder, start) in edges.keys() {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
            while let Some(at) = open.pop() {
                for next in edges.get(&(folder.clone(), at)).into_iter().flatten() {
                    if seen.insert(next.clone()) {
                        open.push(next.clone());
                    }
                }
            }
            if seen.contains(start) {
                circles.push(format!("{name}/src/{}: {start}", folder.join("/")));
            }
        }
    }
    assert!(
        circles.is_empty(),
        "move what both need to a file of its own:\n{}",
        circles.join("\n")
    );
}

/// Words that docs/style.md replaces, in lower case.
const WORDS: [&str; 12] = [
    "nobody",
    "somebody",
    "whoever",
    "anybody",
    "everybody",
    "anew",
    "in vain",
    "leave away",
    "mended",
    "mends",
    "1 pods",
    "1 nodes",
];

/// Whether the text has the words as whole words.
fn has(text: &str, words: &str) -> bool {
    let is_letter =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(words).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + words.len()..].chars().next())
    })
}

/// The files of the documentation, and the manifests of deploy/ and of the lab.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = ["docs", "deploy", "tests/manifests"]
        .map(|name| root().join(name))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md" || end == "yaml") {
                found.push(path);
            }
        }
    }
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
        "tests/standin/README.md",
    ] {
        found.push(root().join(name));
    }
    found.retain(|path| !path.ends_with("docs/style.md"));
    found
}

#[test]
fn texts_have_no_word_that_the_style_guide_replaces() {
    let mut found = Vec::new();
    let mut look = |path: &Path, text: &str| {
        for (number, line) in text.lines().enumerate() {
            // The name of a user of Linux, in a document and in a list of users.
            let line = line.to_lowercase().replace("`nobody`", "").replace("nobody:", "");
            if let Some(word) = WORDS.iter().find(|word| has(&line, word)) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    };
    let crates = CRATES.iter().map(|name| format!("{name}/src"));
    for folder in crates.chain(LAB.map(str::to_owned)) {
        for (path, text) in sources(&root().join(folder)) {
            look(&path, &text);
        }
    }
    for path in documents() {
        look(&path, &fs::read_to_string(&path).unwrap());
    }
    assert!(found.is_empty(), "see docs/style.md:\n{}", found.join("\n"));
}

/// Nouns that a count may precede.
const COUNTED: [&str; 9] = [
    "hosts",
    "pods",
    "nodes",
    "Nodes",
    "Services",
    "addresses",
    "blocks",
    "files",
    "routes",
];

/// Whether a placeholder stands before the noun at this place, as a count: not the whole in "3 of 12 pods" and "3/12 pods".
fn is_count(before: &str) -> bool {
    let Some(start) = before.strip_suffix("} ").and_then(|before| before.rfind('{')) else {
        return false;
    };
    let rest = &before[..start];
    !rest.ends_with("} of ") && !rest.ends_with('/')
}

#[test]
fn counts_get_their_noun_from_one_function() {
    let mut found = Vec::new();
    for name in CRATES {
        for (path, text) in sources(&root().join(name).join("src")) {
            for (number, line) in text.lines().enumerate() {
                let is_counted = |noun: &&str| {
                    line.match_indices(*noun).any(|(at, _)| {
                        let end = line[at + noun.len()..].chars().next();
                        is_count(&line[..at]) && !end.is_some_and(char::is_alphanumeric)
                    })
                };
                if COUNTED.iter().any(is_counted) {
                    found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "use `engine::words::number`:\n{}",
        found.join("\n")
    );
}

/// Lines that name the example kind outside of its own folders, by file.
fn lines_of_the_example() -> BTreeMap<String, usize> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut count = |path: &Path, text: &str| {
        let marks = ["example-kind", "kinds/example", "Example example", "mod example;"];
        let names =
            |line: &&str| marks.iter().any(|mark| line.contains(mark)) || line.starts_with("example = ");
        let lines = text.lines().filter(names).count();
        if lines > 0 {
            let path = path.strip_prefix(&root).unwrap().display().to_string();
            found.insert(path, lines);
        }
    };
    for name in CRATES.iter().filter(|name| **name != "kinds/example") {
        for (path, text) in sources(&root.join(name).join("src")) {
            let is_of_the_kind =
                |part: Component<'_>| Path::new(&part).with_extension("").as_os_str() == "example";
            if !path.components().any(is_of_the_kind) {
                count(&path, &text);
            }
        }
        let manifest = root.join(name).join("Cargo.toml");
        count(&manifest, &fs::read_to_string(&manifest).unwrap());
    }
    let manifest = root.join("Cargo.toml");
    count(&manifest, &fs::read_to_string(&manifest).unwrap());
    found
}

#[test]
fn a_kind_touches_its_folders_and_one_line_in_each_registry() {
    let found = lines_of_the_example();
    let document = fs::read_to_string(root().join("docs/adding-a-kind.md")).unwrap();
    let table: BTreeMap<String, usize> = document
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let path = cells.next()?.trim().trim_end_matches('`').to_owned();
            Some((path, cells.next()?.trim().parse().ok()?))
        })
        .collect();
    assert_eq!(
        table, found,
        "docs/adding-a-kind.md counts the lines outside of the folders of a kind"
    );
}

/// Folders with the code that is the same for every kind, without the registries `kinds.rs` and the folders `kinds/`. The kernel
/// code in `agent/src/host/` works with the types of the kinds.
const SHARED: [&str; 6] = [
    "engine/src",
    "calico/src",
    "runtime/src",
    "listening/src",
    "coordinator/src",
    "agent/src",
];

/// The names of every kind: its type, its crate, its field in the API and its folder.
fn names_of_kinds() -> Vec<[&'static str; 4]> {
    macro_rules! names {
        ($($(#[cfg($($cfg:tt)*)])? $kind:ident $crate_name:ident $api_field:literal $folder:literal,)+) => {
            vec![$([stringify!($kind), stringify!($crate_name), $api_field, $folder],)+]
        };
    }
    api::for_each_kind!(names)
}

#[test]
fn only_registries_and_folders_of_kinds_name_a_kind() {
    let kinds = names_of_kinds();
    assert_eq!(kinds.len(), 5, "four kinds, and the example");
    let mut found = Vec::new();
    for folder in SHARED {
        let folder = root().join(folder);
        for (path, text) in sources(&folder) {
            let within = path.strip_prefix(&folder).unwrap();
            if ["kinds", "kinds.rs", "host"]
                .iter()
                .any(|name| within.starts_with(name))
            {
                continue;
            }
            for (number, line) in text.lines().enumerate() {
                // The field of Kubernetes' Node.
                let line = line.replace("spec.pod_cidr.", "");
                // The names of the example are words of plain English.
                let mut names = kinds.iter().filter(|names| names[1] != "example").flatten();
                if let Some(name) = names.find(|name| has(&line, name)) {
                    found.push(format!("{}:{}: {name}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "move what one kind needs to its folder, or let the kind pass it as data:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_front_page_of_rustdoc_has_every_crate_except_new_kinds() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = "));
    let page = fs::read_to_string(root().join("docs/about/src/lib.rs")).unwrap();
    let rows: BTreeSet<&str> = page
        .lines()
        .filter(|line| line.starts_with("//! | ["))
        .filter_map(|line| line.split('|').nth(2))
        .map(|cell| cell.trim().trim_matches('`'))
        .collect();
    let members: BTreeSet<&str> = members.unwrap().split('"').skip(1).step_by(2).collect();
    let unknown: Vec<&&str> = rows.difference(&members).collect();
    assert!(unknown.is_empty(), "{unknown:?} are no members");
    // A new kind touches its folders only: the page need not name it.
    let missing: Vec<&&str> = members
        .difference(&rows)
        .filter(|member| **member != "docs/about" && !member.starts_with("kinds/"))
        .collect();
    assert!(missing.is_empty(), "{missing:?} have no row");
}

#[test]
fn documents_name_files_that_exist() {
    let mut missing = Vec::new();
    for path in documents()
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
    {
        let text = fs::read_to_string(path).unwrap();
        for (number, line) in text.lines().enumerate() {
            // Every second part is in backticks.
            for name in line.split('`').skip(1).step_by(2) {
                let is_path = Path::new(name).extension().is_some_and(|end| end == "rs")
                    && !name.contains(['<', '*', ' ']);
                let is_here = CRATES.iter().any(|of| name.starts_with(&format!("{of}/")));
                if is_path && is_here && !root().join(name).exists() {
                    missing.push(format!("{}:{}: {name}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
