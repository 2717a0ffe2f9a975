//! Options on the command line of a container.

use crate::cluster::Container;

/// Characters that a shell removes around a word.
pub const QUOTES: [char; 3] = ['"', '\'', ';'];

/// The value of an option of the container: `--name=value` or `--name value`. The last one wins.
pub fn argument(container: &Container, name: &str) -> Option<String> {
    let words = words(container);
    let mut found = None;
    for (index, word) in words.iter().enumerate() {
        let Some(option) = option(word) else { continue };
        match option.split_once('=') {
            Some((key, value)) if key == name => found = Some(value.trim_matches(QUOTES).to_owned()),
            None if option == name => {
                let next = words.get(index + 1).filter(|next| !next.starts_with('-'));
                found = next.map(|next| (*next).to_owned());
            }
            Some(_) | None => {}
        }
    }
    found
}

/// Whether an option without a value is on or off; `None` if the option is absent. The last one wins.
pub fn switch(container: &Container, name: &str) -> Option<bool> {
    words(container)
        .iter()
        .rev()
        .filter_map(|word| option(word))
        .find_map(|option| match option.split_once('=') {
            Some((key, value)) => (key == name).then(|| is_true(value)),
            None => (option == name).then_some(true),
        })
}

/// Whether Go parses this text as true.
pub fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// Whether the container runs this program.
pub fn runs(container: &Container, program: &str) -> bool {
    words(container)
        .iter()
        .any(|word| word.rsplit('/').next() == Some(program))
}

/// The arguments as single words, as a shell splits them: some manifests start a program with `sh -c`.
fn words(container: &Container) -> Vec<&str> {
    container
        .arguments
        .iter()
        .flat_map(|argument| argument.split_whitespace())
        .map(|word| word.trim_matches(QUOTES))
        .collect()
}

/// An option without its dashes. Go accepts one or two.
fn option(word: &str) -> Option<&str> {
    word.strip_prefix("--")
        .or_else(|| word.strip_prefix('-'))
        .filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn container(arguments: &[&str]) -> Container {
        Container {
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            ..Container::default()
        }
    }

    #[rstest]
    #[case::equals(&["--kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::one_dash(&["-kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::two_words(&["--kube-annotation-prefix", "a.b", "--ip-masq"], Some("a.b"))]
    #[case::shell(&["sh", "-c", "flanneld --kube-annotation-prefix='a.b' --ip-masq"], Some("a.b"))]
    #[case::last_wins(&["--kube-annotation-prefix=x.y", "--kube-annotation-prefix=a.b"], Some("a.b"))]
    #[case::no_value(&["--kube-annotation-prefix", "--ip-masq"], None)]
    #[case::absent(&["--kube-annotation-prefixes=a.b"], None)]
    fn values_of_options_are_read_in_all_spellings(
        #[case] arguments: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let found = argument(&container(arguments), "kube-annotation-prefix");
        assert_eq!(found.as_deref(), expected);
    }

    #[rstest]
    #[case(&["--kube-subnet-mgr"], Some(true))]
    #[case(&["-kube-subnet-mgr=1"], Some(true))]
    #[case(&["--kube-subnet-mgr=false"], Some(false))]
    #[case(&["--kube-subnet-mgr", "--kube-subnet-mgr=false"], Some(false))]
    #[case(&["--ip-masq"], None)]
    fn switches_are_read_in_all_spellings(#[case] arguments: &[&str], #[case] expected: Option<bool>) {
        assert_eq!(switch(&container(arguments), "kube-subnet-mgr"), expected);
    }
}
