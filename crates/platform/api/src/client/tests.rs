//! Addresses that are refused before anything is sent.

use super::*;

async fn refused(url: &str) -> &'static str {
    let target = Target::Https {
        url: url.into(),
        ca: Some(String::new()),
    };
    match Client::connect(target).await {
        Err(CallError::Target { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_never_goes_out_in_the_clear_or_to_a_wrong_place() {
    assert_eq!(
        refused("http://server:80").await,
        "it must start with https://"
    );
    assert_eq!(
        refused("https://user@server").await,
        "it must be https://HOST[:PORT] and nothing more"
    );
    assert_eq!(
        refused("https://server/api").await,
        "it must be https://HOST[:PORT] and nothing more"
    );
    assert_eq!(
        refused("https://server").await,
        "there is no certificate to trust"
    );
}

#[test]
fn values_are_encoded() {
    assert_eq!(encode("a-b_c.d~9"), "a-b_c.d~9");
    assert_eq!(encode("a/b?c=d&e ü"), "a%2Fb%3Fc%3Dd%26e%20%C3%BC");
}
