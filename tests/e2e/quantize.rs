//! `hyla model quantize` as a person runs it: the folder that it writes, and every command that opens one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use bot::model::Model;
use bot::model::local::Local;
use engine::{Message, Request, Sampling};
use serde_json::Value;
use tests::house::hyla_binary;
use tests::model::PATIENCE;
use tests::tiny;
use tokio::process::Command;

/// A folder with a model `source`.
fn source() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let thinking = &["Nothing is wrong.", "</think>", "All is well.", "<|im_end|>"];
    tiny::scripted(&source, thinking, &["Yes.", "<|im_end|>"]);
    (folder, source)
}

/// Code, standard output, standard error.
async fn hyla(arguments: &[&str], folders: &[&Path]) -> (Option<i32>, String, String) {
    let output = Command::new(hyla_binary())
        .args(arguments)
        .args(folders)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, output).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn said(folder: &Path, dtype: Option<config::Dtype>) -> Result<String, String> {
    let settings = config::Local { dtype, threads: 1, sessions: 1, ..config::Local::default() };
    let model = Local::new(folder.to_owned(), &settings, 8192);
    let messages = vec![Message::User { content: "hello".into() }];
    let request = Request { messages, tools: Vec::new(), sampling: Sampling::default() };
    let reply = model.turn(&request, &mut |_| {}).await;
    let words = |error: &dyn std::error::Error| bot::halt::chain(error);
    let window = model.context_window().await;
    assert_eq!(window.is_ok(), reply.is_ok(), "who looks finds what who loads does");
    reply.map(|reply| reply.content).map_err(|error| words(&error))
}

#[tokio::test]
async fn a_quantised_folder_is_written_and_opened_without_naming_its_form() {
    let (folder, source) = source();
    for dtype in ["int8", "int4"] {
        let out = folder.path().join(dtype);
        let quantize = ["model", "quantize", "--dtype", dtype, "--threads", "1"];
        let (code, stdout, stderr) = hyla(&quantize, &[&source, &out]).await;
        let told = format!("wrote `{}`: {dtype}, 0.00 GB of weights", out.display());
        assert!(stdout.starts_with(&told), "{stdout}");
        assert_eq!((code, stderr.as_str()), (Some(0), ""));

        let (code, stdout, _) = hyla(&["model", "info", "--json"], &[&out]).await;
        let info: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, info["dtype"].as_str()), (Some(0), Some(dtype)));
        let (_, plain, _) = hyla(&["model", "info", "--json"], &[&source]).await;
        let plain: Value = serde_json::from_str(&plain).unwrap();
        assert_eq!(info["parameters"], plain["parameters"]);
        let bytes = |info: &Value| info["weight_bytes"].as_u64().unwrap();
        assert!(bytes(&info) * 3 < bytes(&plain), "{info} {plain}");

        assert_eq!(said(&out, None).await.unwrap(), "All is well.");
        let error = said(&out, Some(config::Dtype::Bf16)).await.unwrap_err();
        let expected = format!("as bf16: they are quantised to {dtype}; ask for {dtype}, leave");
        assert!(error.contains(&expected), "{error}");

        let (code, _, stderr) = hyla(&quantize, &[&source, &out]).await;
        assert_eq!(code, Some(1));
        assert!(stderr.contains("it is there and not empty; name another folder"), "{stderr}");
    }
    let out = folder.path().join("int8");
    let serve = ["model", "serve", "--listen", "127.0.0.1:0", "--dtype", "int4", "--model"];
    let (code, _, stderr) = hyla(&serve, &[&out]).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("as int4: they are quantised to int8; ask for int8"), "{stderr}");
}

#[tokio::test]
async fn wrong_arguments_are_told_before_anything_is_written() {
    let (folder, source) = source();
    let out = folder.path().join("out");
    for (arguments, code, words) in [
        (&["model", "quantize", "--dtype", "int3"][..], 2, "use int8 or int4"),
        (&["model", "quantize"], 2, "--dtype"),
        (&["model", "quantize", "--dtype", "int8", "--threads", "0"], 2, "at least 1"),
    ] {
        let (got, _, stderr) = hyla(arguments, &[&source, &out]).await;
        assert_eq!(got, Some(code), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
    let quantize = ["model", "quantize", "--dtype", "int8"];
    let (code, _, stderr) = hyla(&quantize, &[folder.path(), &out]).await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("config.json"), "{stderr}");
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing but the source: {names:?}");
    let (_, help, _) = hyla(&["model", "quantize", "--help"], &[]).await;
    assert!(help.contains("Example: hyla model quantize ~/models"), "{help}");
}
