//! What the fuzz target of the chat endpoint does, with bodies that try its corners. So the target cannot rot either.

#[path = "../fuzz/bodies/chat.rs"]
mod chat;

use std::path::Path;

use chat::{Folder, Outcome};

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
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/chat");
    for file in std::fs::read_dir(seeds).expect("there are seeds") {
        let path = file.expect("it is listed").path();
        let body = std::fs::read(&path).expect("it is there");
        assert_eq!(folder.run(&body), Outcome::Prompt, "{}", path.display());
    }
}
