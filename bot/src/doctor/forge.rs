//! One forge: does it answer, to whom, is it recent enough, and would an ask in each repository get to its draft?

use config::ForgeKind;

use super::{Line, Show, app, line};
use crate::clock::Clock;
use crate::forge::{Error, Forge, OwnApp};
use crate::halt::chain;
use crate::job::RepoName;
use crate::sandbox::Verdict;

/// How far the clocks may be apart, in seconds. An app's assertions begin a minute before they are made.
const APART: i64 = 60;

/// Looks at a forge and its repositories.
pub async fn forge(
    name: &str,
    settings: &config::Forge,
    (forge, clock): (&dyn Forge, &dyn Clock),
    show: &mut Show<'_>,
) {
    let subject = format!("forge {name}");
    if let Some(line) = time(name, settings, forge, clock).await {
        show(line);
    }
    let login = match forge.whoami().await {
        Ok(user) => user.login,
        Err(error) => {
            let next = api_next(&error, name, settings);
            show(line(subject, Verdict::Fails, at(settings, &error, &next)));
            return;
        }
    };
    show(version(subject.clone(), &login, settings, forge).await);
    if settings.repositories.is_empty() {
        let detail = format!(
            "`forge.{name}.repositories` is empty, so nothing is worked on; name one, such as `[\"acme/app\"]`"
        );
        show(line(subject, Verdict::Fails, detail));
    }
    if let Some(app) = forge.own_app() {
        show(app::webhook(name, settings, app).await);
    }
    for repository in &settings.repositories {
        let Ok(repo) = repository.parse() else { continue };
        let place = Place { name, settings, forge, login: &login, repo };
        for line in place.look().await {
            show(line);
        }
    }
}

/// Whether the clocks are too far apart. A forge that does not answer says so where it is asked next.
async fn time(
    name: &str,
    settings: &config::Forge,
    forge: &dyn Forge,
    clock: &dyn Clock,
) -> Option<Line> {
    let theirs = forge.clock().await.ok()??;
    let ahead = clock.now().signed_duration_since(theirs).num_seconds();
    if ahead.abs() <= APART {
        return None;
    }
    let (verdict, then) = match settings.app {
        Some(_) => (Verdict::Fails, ", and the forge does not believe an app whose clock is wrong"),
        None => (Verdict::Warns, ""),
    };
    let (n, way) = (ahead.abs(), if ahead > 0 { "ahead of" } else { "behind" });
    let detail = format!(
        "this machine is {n} seconds {way} the forge{then}; set the clocks of both, best by NTP"
    );
    Some(line(format!("forge {name}: clock"), verdict, detail))
}

async fn version(
    subject: String,
    login: &str,
    settings: &config::Forge,
    forge: &dyn Forge,
) -> Line {
    let who = match settings.app {
        Some(_) => format!("the app is user `{login}`"),
        None => format!("the token is of user `{login}`"),
    };
    match forge.version().await {
        Ok(version) => match unsupported(settings.kind, &version) {
            Some(why) => line(subject, Verdict::Fails, format!("{who}; {why}")),
            None => line(subject, Verdict::Holds, format!("{who}; version {version}")),
        },
        Err(error) => {
            let why = format!("its version is not known: {}", chain(&error));
            line(subject, Verdict::Warns, format!("{who}; {why}; the README says which will do"))
        }
    }
}

/// What is wrong with a version, and what to do. One that cannot be read, as of somebody's own build, is let pass.
fn unsupported(kind: ForgeKind, version: &str) -> Option<String> {
    // Forgejo tells besides which version of Gitea its API is like.
    let is_forgejo = version.contains("+gitea-");
    let shown = crate::reply::code_span(version);
    let (name, other, least) = match kind {
        ForgeKind::Gitea => ("Gitea", is_forgejo.then_some("forgejo"), (1, 24)),
        ForgeKind::Forgejo => ("Forgejo", (!is_forgejo).then_some("gitea"), (11, 0)),
        ForgeKind::GitHub => ("GitHub Enterprise Server", None, (3, 14)),
    };
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    if let Some(other) = other {
        return Some(format!("version {shown} is no {name}; set `kind = \"{other}\"`"));
    }
    ((major, minor) < least).then(|| {
        let least = format!("{}.{}", least.0, least.1);
        format!("version {shown} is too old: {name} {least} or later is needed; update it")
    })
}

/// One repository of a forge.
struct Place<'a> {
    name: &'a str,
    settings: &'a config::Forge,
    forge: &'a dyn Forge,
    login: &'a str,
    repo: RepoName,
}

impl Place<'_> {
    /// All that would end a job, or that the repository is in order.
    async fn look(&self) -> Vec<Line> {
        let Self { forge, repo, login, .. } = self;
        let seen = match forge.repository(repo).await {
            Ok(seen) => seen,
            Err(error) => return vec![self.unread(Verdict::Fails, &error)],
        };
        let mut lines = match forge.own_app() {
            Some(app) => self.look_at_app(app).await,
            None => vec![],
        };
        let mut fails = |detail: String| lines.push(self.line(Verdict::Fails, detail));
        if !seen.can_push && forge.own_app().is_none() {
            fails(format!("user `{login}` may not push; give it write access"));
        }
        if !seen.has_pulls {
            fails("pull requests are switched off; switch them on in its settings".into());
        }
        match forge.sees_permissions(repo).await {
            Ok(true) => {}
            Ok(false) => fails(format!(
                "user `{login}` cannot see what others may do, so every ask is refused; make it an administrator of the repository, and give its token all repositories"
            )),
            Err(error) => lines.push(self.unread(Verdict::Warns, &error)),
        }
        if seen.archived {
            lines.push(self.line(
                Verdict::Warns,
                "it is archived, so every ask is refused; take it out of the list, or unarchive it"
                    .into(),
            ));
        }
        let label = &self.settings.label;
        match forge.has_label(repo, label).await {
            Ok(true) => {}
            Ok(false) => lines.push(self.line(
                Verdict::Warns,
                format!("it has no label `{label}`, so nobody can ask; make it on the repository's page of labels"),
            )),
            Err(error) => lines.push(self.unread(Verdict::Warns, &error)),
        }
        if lines.is_empty() {
            let detail = format!("work starts from `{}`", seen.default_branch);
            lines.push(self.line(Verdict::Holds, detail));
        }
        lines
    }

    async fn look_at_app(&self, app: &dyn OwnApp) -> Vec<Line> {
        match app::lacking(app, &self.repo).await {
            Ok(lacking) => {
                lacking.into_iter().map(|(verdict, detail)| self.line(verdict, detail)).collect()
            }
            Err(error) => vec![self.unread(Verdict::Warns, &error)],
        }
    }

    fn line(&self, verdict: Verdict, detail: String) -> Line {
        line(format!("forge {}: {}", self.name, self.repo), verdict, detail)
    }

    fn unread(&self, verdict: Verdict, error: &Error) -> Line {
        let next = match error {
            Error::Missing { .. } => format!(
                "check its name in `forge.{}.repositories`, and that user `{}` may see it",
                self.name, self.login
            ),
            Error::Moved { to, .. } => {
                format!("write `{to}` in `forge.{}.repositories` instead", self.name)
            }
            Error::Auth { .. }
            | Error::Denied { .. }
            | Error::Declined { .. }
            | Error::Unwell { .. }
            | Error::Unreachable { .. }
            | Error::Answer { .. } => api_next(error, self.name, self.settings),
        };
        self.line(verdict, at(self.settings, error, &next))
    }
}

fn at(settings: &config::Forge, error: &Error, next: &str) -> String {
    format!("`{}`: {}; {next}", settings.url, chain(error))
}

/// What to do when the API does not answer as it should.
pub(super) fn api_next(error: &Error, name: &str, settings: &config::Forge) -> String {
    match error {
        Error::Auth { .. } => {
            match (&settings.token, &settings.app) {
                (Some(token), _) => {
                    format!("make a new token for the bot's user and put it into {token}")
                }
                (None, Some(app)) => format!(
                    "compare the clocks of this machine and of the forge; check `forge.{name}.app.id`, and put a new private key of the app into {}", app.private_key
                ),
                (None, None) => format!("set `forge.{name}.token`"),
            }
        }
        Error::Denied { message, .. } if settings.app.is_some() && message.contains("suspended") => {
            "have the owner of the repositories end that in the settings under Installed GitHub Apps".into()
        }
        Error::Denied { .. } if settings.kind == ForgeKind::GitHub => "give the app, or the token, the permissions to read and write contents, issues and pull requests".into(),
        Error::Denied { .. } => "give the token the scopes `write:repository`, `write:issue` and `read:user`, and `read:organization` for repositories of organisations".into(),
        Error::Missing { .. } if settings.app.is_some() => format!(
            "check `forge.{name}.url` and `forge.{name}.app.id`, and install the app in each repository of `forge.{name}.repositories`"
        ),
        Error::Missing { .. } => format!(
            "check `forge.{name}.url`: with a sub-path if the forge has one, and without `/api/v1`"
        ),
        Error::Moved { .. } | Error::Declined { .. } | Error::Answer { .. } => {
            format!("check `forge.{name}.url`, and any proxy or login page in between")
        }
        Error::Unwell { .. } => "look at the forge's own log, and ask again once it is well".into(),
        Error::Unreachable { .. } if chain(error).contains("certificate") => format!(
            "let `forge.{name}.ca_file` name a PEM file with the authority that signed the forge's certificate, and check that it is for the host of `forge.{name}.url` and has not run out"
        ),
        Error::Unreachable { .. } if settings.proxy.is_some() => format!(
            "start the forge, or check `forge.{name}.url`, and that `forge.{name}.proxy` leads there"
        ),
        Error::Unreachable { .. } => format!("start the forge, or check `forge.{name}.url`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_too_old_is_named() {
        let check = |kind, version: &str, expected: Option<&str>| {
            let found = unsupported(kind, version);
            let fits = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(fits, "{version}: {found:?}");
        };
        check(ForgeKind::Gitea, "1.24.0", None);
        check(ForgeKind::Gitea, "1.27.0+dev-31-gabcdef0", None);
        check(ForgeKind::Gitea, "development", None);
        check(ForgeKind::Gitea, "1.20.3", Some("`1.20.3` is too old: Gitea 1.24"));
        check(ForgeKind::Gitea, "15.0.3+gitea-1.22.0", Some("kind = \"forgejo\""));
        check(ForgeKind::Forgejo, "15.0.3+gitea-1.22.0", None);
        check(ForgeKind::Forgejo, "10.0.1+gitea-1.22.0", Some("too old: Forgejo 11.0"));
        check(ForgeKind::Forgejo, "1.27.0", Some("kind = \"gitea\""));
    }
}
