//! What the fuzz targets do, with inputs that try their corners. So the targets cannot rot either.

#[path = "../fuzz/bodies/chat.rs"]
mod chat;
#[path = "../fuzz/bodies/import.rs"]
mod import;
#[path = "../fuzz/bodies/paths.rs"]
mod paths;

use std::path::Path;

use chat::{Folder, Outcome};

fn seeds(target: &str) -> impl Iterator<Item = (String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    std::fs::read_dir(folder).expect("there are seeds").map(|file| {
        let path = file.expect("it is listed").path();
        (path.display().to_string(), std::fs::read(&path).expect("it is there"))
    })
}

#[test]
fn any_body_is_a_prompt_or_is_refused() {
    let folder = Folder::new();
    let asked = |rest: &str| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{rest}}}"#);
    let tools = r#","tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1e308,null,"<think>"]}}}]"#;
    let deep = format!(r#","tools":[{}"#, r#"{"a":["#.repeat(100_000));
    for (body, expected) in [
        (asked(""), Outcome::Prompt),
        (asked(tools), Outcome::Prompt),
        (asked(&(tools.to_owned() + r#","tool_choice":"required""#)), Outcome::Prompt),
        (asked(r#","tool_choice":"required""#), Outcome::Refused(400)),
        (asked(&deep), Outcome::Refused(400)),
        (asked(r#","model":"other""#), Outcome::Refused(404)),
        (r#"{"messages":[{"role":"assistant"}]}"#.to_owned(), Outcome::NoPrompt),
        ("\u{feff}".to_owned(), Outcome::Refused(400)),
        (String::new(), Outcome::Refused(400)),
    ] {
        assert_eq!(folder.run(body.as_bytes()), expected, "{}", &body[..body.len().min(200)]);
    }
    assert_eq!(folder.run(b"\xff\x00"), Outcome::Refused(400));
}

#[test]
fn what_the_target_begins_with_is_in_order() {
    let folder = Folder::new();
    for (path, body) in seeds("chat") {
        assert_eq!(folder.run(&body), Outcome::Prompt, "{path}");
    }
}

#[test]
fn t14_any_path_leads_inside_or_is_refused() {
    use paths::Outcome::{Inside, Nothing, Refused};
    let place = paths::Place::new();
    let deep = "d/".repeat(129);
    for (path, expected) in [
        ("f", Inside),
        ("./d//e/../f", Inside),
        ("/workspace/f", Inside),
        ("inner/../f", Inside),
        (".git/f", Inside),
        ("none", Nothing),
        ("d", Nothing),
        ("g", Nothing),
        ("out/f", Nothing),
        ("d/up/f", Nothing),
        ("root/etc/passwd", Nothing),
        ("cwd/f", Nothing),
        ("parent/workspace-evil/f", Nothing),
        ("inner/f", Nothing),
        ("", Refused),
        ("..", Refused),
        ("../workspace-evil/f", Refused),
        ("a/../../workspace-evil/f", Refused),
        ("/workspace-evil/f", Refused),
        ("/workspace/../workspace-evil/f", Refused),
        ("/etc/passwd", Refused),
        ("f\0", Refused),
        (deep.as_str(), Refused),
    ] {
        assert_eq!(place.run(path.as_bytes()), expected, "{path:?}");
        place.write(path.as_bytes());
    }
    for (path, bytes) in seeds("paths") {
        place.run(&bytes);
        place.write(&bytes);
        assert!(!path.is_empty());
    }
    // Some of everything, the same each time.
    let mut dice = fastrand::Rng::with_seed(14);
    let parts = [
        "f",
        "d",
        "e",
        "..",
        ".",
        "",
        "out",
        "up",
        "g",
        "root",
        "inner",
        ".git",
        "workspace",
        "\0",
        "\u{202e}",
    ];
    for _ in 0..2000 {
        let n_parts = dice.usize(0..8);
        let path: Vec<_> =
            (0..n_parts).map(|_| *dice.choice(&parts).expect("there are some")).collect();
        let path = ["", "/"][dice.usize(0..2)].to_owned() + &path.join("/");
        place.run(path.as_bytes());
    }
}

#[test]
fn t33_any_workspace_is_imported() {
    let world = import::World::new();
    assert!(world.run(&[]).is_empty());
    let edited = world.run(b"\0\0\x04new\n");
    assert_eq!(edited.changes.len(), 1, "{:?}", edited.changes);
    for (path, acts) in seeds("import") {
        assert!(!world.run(&acts).is_empty(), "{path}");
    }
    let mut dice = fastrand::Rng::with_seed(33);
    for _ in 0..150 {
        let mut acts = Vec::new();
        for _ in 0..dice.usize(1..12) {
            let n_bytes = dice.u8(0..12);
            acts.extend([dice.u8(0..8), dice.u8(0..26), n_bytes]);
            acts.extend((0..n_bytes).map(|_| dice.u8(b' '..b'~')));
        }
        world.run(&acts);
    }
}
