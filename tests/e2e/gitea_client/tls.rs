//! A forge behind a certificate authority that the system does not know.

use super::*;
use tests::tls::TlsServer;

#[tokio::test]
async fn an_authority_from_the_ca_file_is_trusted_and_no_other() {
    let answers = [("api/v1/user", "{\"id\": 5, \"login\": \"hyla\"}")];
    let Some(server) = TlsServer::start(&answers) else {
        eprintln!("skipped: there is no openssl command");
        return;
    };
    let scene = Scene::new(Dialect::Gitea127).await;
    let mut options = options(&scene.forge, Dialect::Gitea127, &scene.token);
    options.url = server.url().parse().unwrap();
    let error = Gitea::new(options.clone()).unwrap().whoami().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    options.ca_file = Some(server.ca_file());
    let client = Gitea::new(options.clone()).unwrap();
    assert_eq!(client.whoami().await.unwrap().login, "hyla");
    assert_eq!(client.remote(&scene.repo).await.unwrap().ca_file, options.ca_file);
}
