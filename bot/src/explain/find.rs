//! Which issue somebody means: `FORGE:OWNER/REPO#N`, `OWNER/REPO#N`, or a link as the forge shows it.

use std::collections::BTreeMap;

use config::Forge;

use crate::doctor::ADD_A_FORGE;
use crate::job::{RepoName, Subject};

/// Finds the issue that somebody wrote or pasted.
///
/// # Errors
/// No such issue can be meant; the text says how to write it.
pub fn find(text: &str, forges: &BTreeMap<String, Forge>) -> Result<Subject, String> {
    let text = text.trim();
    if forges.is_empty() {
        return Err(format!("no forge is configured: {ADD_A_FORGE}"));
    }
    if text.starts_with("http://") || text.starts_with("https://") {
        return by_link(text, forges);
    }
    let wrong = || {
        "an issue is written `FORGE:OWNER/REPO#NUMBER` or `OWNER/REPO#NUMBER`, or is its link on the forge"
            .to_owned()
    };
    if text.contains(':') {
        let subject: Subject = text.parse().map_err(str::to_owned)?;
        if !forges.contains_key(&subject.forge) {
            let names: Vec<&str> = forges.keys().map(String::as_str).collect();
            return Err(format!(
                "no forge is called `{}`; the configuration has `{}`",
                subject.forge,
                names.join("`, `")
            ));
        }
        return Ok(subject);
    }
    let (repo, number) = text.rsplit_once('#').ok_or_else(wrong)?;
    let (repo, issue) = (repo.parse().map_err(|_| wrong())?, number.parse().map_err(|_| wrong())?);
    if issue == 0 {
        return Err("the first issue of a repository is #1".into());
    }
    Ok(Subject { forge: only_forge(&repo, forges)?, repo, issue })
}

/// The forge that allows a repository, or the only one there is.
fn only_forge(repo: &RepoName, forges: &BTreeMap<String, Forge>) -> Result<String, String> {
    let name = repo.to_string();
    let allowing: Vec<&String> =
        forges.iter().filter(|(_, forge)| forge.allows(&name)).map(|(forge, _)| forge).collect();
    let all: Vec<&String> = forges.keys().collect();
    match (allowing.as_slice(), all.as_slice()) {
        ([one], _) | ([], [one]) => Ok((*one).clone()),
        ([], many) | (many, _) => {
            let many: Vec<String> = many.iter().map(|forge| format!("{forge}:{name}#…")).collect();
            Err(format!("say on which forge: `{}`", many.join("` or `")))
        }
    }
}

/// A link such as `https://git.example.org/acme/app/issues/7#issuecomment-9`.
fn by_link(link: &str, forges: &BTreeMap<String, Forge>) -> Result<Subject, String> {
    let wrong = || {
        let shown = forges.values().next().map_or("https://git.example.org/", |forge| {
            forge.public_url.as_ref().unwrap_or(&forge.url).as_str()
        });
        let shown = shown.trim_end_matches('/');
        format!("an issue's link is written `{shown}/OWNER/REPO/issues/NUMBER`")
    };
    let bare = link.split(['#', '?']).next().unwrap_or_default();
    for (name, forge) in forges {
        for address in [Some(&forge.url), forge.public_url.as_ref()].into_iter().flatten() {
            let address = address.as_str().trim_end_matches('/');
            let rest =
                bare.get(..address.len()).filter(|start| start.eq_ignore_ascii_case(address));
            let Some(rest) = rest.and_then(|_| bare[address.len()..].strip_prefix('/')) else {
                continue;
            };
            let parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
            let [owner, repo, "issues" | "pulls", number] = parts[..] else { continue };
            let repo = format!("{owner}/{repo}").parse().map_err(|_| wrong())?;
            let issue = number.parse().ok().filter(|&number| number > 0).ok_or_else(wrong)?;
            return Ok(Subject { forge: name.clone(), repo, issue });
        }
    }
    Err(wrong())
}
