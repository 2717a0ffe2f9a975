//! The command without a cluster, as users and pipelines run it: help, bad input, exit codes.

#![expect(clippy::unwrap_used, reason = "a test fails with a panic")]

use std::io::Write as _;

use assert_cmd::Command;

/// A kubeconfig of a cluster that does not exist: port 1 of the loopback address.
fn kubeconfig() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        br#"{"apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
            "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}]}"#,
    )
    .unwrap();
    file
}

fn replumb(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("kubectl-replumb").unwrap();
    command.env_clear().args(arguments);
    command
}

/// Runs the command and returns exit code, standard output and standard error.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn help_names_every_command_and_every_exit_code() {
    let (code, out, _) = run(&mut replumb(&["--help"]));
    assert_eq!(code, Some(0));
    for command in [
        "preflight",
        "plan",
        "apply",
        "status",
        "pause",
        "resume",
        "generate",
        "version",
    ] {
        assert!(
            out.contains(&format!("\n  {command}")),
            "{command} is not in\n{out}"
        );
        let (code, help, _) = run(&mut replumb(&[command, "--help"]));
        assert_eq!(code, Some(0), "{command}");
        assert!(help.contains(&format!("kubectl replumb {command}")), "{help}");
        assert!(
            help.contains("--kubeconfig") && help.contains("--context"),
            "{help}"
        );
        assert!(
            command == "version" || help.contains("Examples:"),
            "no example in\n{help}"
        );
    }
    for code in ["0  success", "1  error", "2  refused", "3  paused"] {
        assert!(out.contains(code), "{code} is not in\n{out}");
    }
}

#[test]
fn bad_input_is_an_error_and_never_a_refusal() {
    let kubeconfig = kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let cases: [(&[&str], &str); 14] = [
        (&["migrate"], "unrecognized subcommand"),
        (&[], "Usage"),
        (&["status", "--wach"], "--watch"),
        (&["status", "-o", "yaml"], "possible values: table, json"),
        (&["status", "--timeout", "5m"], "--watch"),
        (
            &["plan", "--max-unavailable", "0"],
            "needed a number of nodes from 1",
        ),
        (
            &["plan", "--flannel-network", "10.244.1.0/16"],
            "its network is 10.244.0.0/16",
        ),
        (&["plan", "--canary-soak", "5m"], "--canary"),
        (&["plan", "--timeout", "soon"], "needed a duration"),
        (&["apply", "--plan-hash", "abc"], "64 hexadecimal digits"),
        (
            &["plan", "--pod-cidr-from", "10.244.1.0/16"],
            "needed 10.244.0.0/16 or another range",
        ),
        (
            &["apply", "--yes", "--pod-cidr-block-size", "60"],
            "from 116 to 128",
        ),
        (
            &["plan", "--flannel-vni", "1", "--pod-cidr-to", "10.200.0.0/16"],
            "spec.flannelToCalico from --flannel-vni, and spec.podCidr from --pod-cidr-to",
        ),
        (
            &["plan", "-f", "/nowhere/migration.yaml"],
            "file /nowhere/migration.yaml: cannot be read",
        ),
    ];
    for (arguments, needed) in cases {
        let (code, out, err) = run(replumb(arguments).args(["--kubeconfig", path]));
        assert_eq!(code, Some(1), "{arguments:?}: {err}");
        assert!(err.contains(needed), "{arguments:?}: {needed:?} is not in\n{err}");
        assert_eq!(out, "", "{arguments:?}");
    }
}

#[test]
fn variables_of_calico_are_read_and_every_invalid_one_is_named() {
    let kubeconfig = kubeconfig();
    let mut command = replumb(&[
        "plan",
        "--from-env",
        "--kubeconfig",
        kubeconfig.path().to_str().unwrap(),
    ]);
    command
        .env("FLANNEL_VNI", "many")
        .env("CNI_CONFIG_DIR", "net.d")
        .env("FLANNEL_MTU", "1450");
    let (code, _, err) = run(&mut command);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("FLANNEL_VNI: found \"many\", needed a number from 1 to 16777215"),
        "{err}"
    );
    assert!(
        err.contains("CNI_CONFIG_DIR: found \"net.d\", needed the full path"),
        "{err}"
    );
    assert!(!err.contains("FLANNEL_MTU"), "{err}");
}

#[test]
fn without_a_cluster_the_error_has_the_attempt_and_a_hint() {
    let (code, _, err) = run(&mut replumb(&["status", "--kubeconfig", "/nowhere/config"]));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("no usable kubeconfig") && err.contains("/nowhere/config"),
        "{err}"
    );
    assert!(err.contains("hint: "), "{err}");

    let (code, _, err) = run(replumb(&["status"]).env("KUBECONFIG", "/nowhere/config"));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("/nowhere/config") && err.contains("tried $KUBECONFIG"),
        "{err}"
    );
    // Outside of a pod, nothing about a pod's ServiceAccount.
    assert!(!err.contains("incluster"), "{err}");

    let kubeconfig = kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let (code, _, err) = run(&mut replumb(&[
        "status",
        "--kubeconfig",
        path,
        "--context",
        "elsewhere",
    ]));
    assert_eq!(code, Some(1));
    assert!(err.contains("elsewhere") && err.contains("get-contexts"), "{err}");

    let (code, out, err) = run(&mut replumb(&["status", "--kubeconfig", path]));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("listing migrations") && err.contains("refused"),
        "{err}"
    );
    assert!(
        err.contains("hint: check whether the API server answers"),
        "{err}"
    );
    assert_eq!(out, "");
}

#[test]
fn version_without_a_cluster_prints_the_version_of_the_tool() {
    let kubeconfig = kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let (code, out, err) = run(&mut replumb(&["version", "--kubeconfig", path]));
    assert_eq!(code, Some(0));
    assert!(out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    assert!(err.contains("agent versions are unknown"), "{err}");
}

#[test]
fn version_without_a_kubeconfig_prints_the_version_of_the_tool() {
    for line in [&["version"][..], &["version", "--kubeconfig", "/nowhere/config"]] {
        let (code, out, err) = run(&mut replumb(line));
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(out, format!("kubectl-replumb {}\n", env!("CARGO_PKG_VERSION")));
        assert!(err.contains("agent versions are unknown"), "{err}");
    }
    let (code, out, _) = run(&mut replumb(&["version", "-o", "json"]));
    assert_eq!(code, Some(0));
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["client"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["agents"], serde_json::json!({}));
    assert!(document["error"].is_string(), "{out}");
}

#[test]
fn the_command_help_prints_the_help_of_each_command() {
    let (code, out, _) = run(&mut replumb(&["help"]));
    assert_eq!(code, Some(0));
    assert_eq!(out, run(&mut replumb(&["--help"])).1);
    for line in [
        &["plan"][..],
        &["apply"],
        &["generate"],
        &["generate", "pod-cidr"],
        &["datastore", "start"],
    ] {
        let (code, out, _) = run(&mut replumb(&[&["help"], line].concat()));
        assert_eq!(code, Some(0), "{line:?}");
        assert!(
            out.contains(&format!("kubectl replumb {}", line.join(" "))),
            "{out}"
        );
    }
    let (code, _, err) = run(&mut replumb(&["help", "unknown"]));
    assert_eq!(code, Some(1), "{err}");
}

const CLUSTER: &str = r#"{"metadata": {"name": "k.example.com"}, "spec": {"nonMasqueradeCIDR": "100.64.0.0/10",
    "serviceClusterIPRange": "100.64.0.0/13", "kubeControllerManager": {"clusterCIDR": "100.96.0.0/11"}}}"#;

#[test]
fn generate_needs_no_cluster_and_apply_reads_the_manifest() {
    let generate = [
        "generate",
        "pod-cidr",
        "--kubeconfig",
        "/nowhere/config",
        "--kops",
        "-",
    ];
    let (code, out, err) = run(replumb(&generate).write_stdin(CLUSTER));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(
        err.contains("spec.nonMasqueradeCIDR of standard input (100.64.0.0/10)")
            && err.contains("hint: ")
            && err.contains("`--via 10.200.0.0/16`"),
        "{err}"
    );

    let kubeconfig = kubeconfig();
    let path = kubeconfig.path().to_str().unwrap();
    let apply = ["apply", "--yes", "-f", "-", "--kubeconfig", path];
    let via = ["--via", "10.200.0.0/16"];
    for hop in ["1", "2"] {
        let line = [&generate[..], &via, &["--hop", hop]].concat();
        let (code, manifest, err) = run(replumb(&line).write_stdin(CLUSTER));
        assert_eq!(code, Some(0), "{err}");
        // The manifest is valid: the next step is a request to the cluster.
        let (_, _, err) = run(replumb(&apply).write_stdin(manifest));
        assert!(err.contains("listing migrations"), "{err}");
    }
    let line = [&generate[..], &via].concat();
    let (code, both, err) = run(replumb(&line).write_stdin(CLUSTER));
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = run(replumb(&apply).write_stdin(both));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("found 2 documents, needed one Migration; the file has pod-cidr-hop-1, pod-cidr-hop-2")
            && err.contains("`kubectl replumb plan pod-cidr-hop-1`"),
        "{err}"
    );
}
