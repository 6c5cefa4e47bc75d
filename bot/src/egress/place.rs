//! Where an address lies: in the internet, in the organisation's network, or where no server may be asked. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the internet.
    Public,
    /// In an organisation's own network: RFC 1918, RFC 6598, RFC 4193.
    Internal,
    /// On this machine, on its own wire (where clouds answer for credentials), or nowhere that a server can be.
    Nearby,
}

/// Where an address lies, by the registries of special-purpose addresses (RFC 6890). An IPv6 address that stands for an
/// IPv4 address lies where that one does.
pub fn place(address: IpAddr) -> Place {
    match address {
        IpAddr::V4(address) => place_v4(address),
        IpAddr::V6(address) => place_v6(address),
    }
}

fn place_v4(address: Ipv4Addr) -> Place {
    match address.octets() {
        [10, ..] | [192, 168, ..] => Place::Internal,
        [172, second, ..] if (16..32).contains(&second) => Place::Internal,
        [100, second, ..] if (64..128).contains(&second) => Place::Internal,
        // This network, loopback, link-local, protocol assignments, documentation, 6to4 relays, benchmarks, multicast and
        // what is reserved.
        [0 | 127, ..]
        | [169, 254, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [224..=255, ..] => Place::Nearby,
        _ => Place::Public,
    }
}

fn place_v6(address: Ipv6Addr) -> Place {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return place_v4(mapped);
    }
    let segments = address.segments();
    let [first, second, .., high, low] = segments;
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        place_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (first, second) {
        // NAT64, well-known prefix (RFC 6052).
        (0x64, 0xff9b) if segments[2..6] == [0; 4] => embedded(high, low),
        // Unique local addresses.
        (0xfc00..=0xfdff, _) => Place::Internal,
        // Global unicast, without Teredo and other special assignments, documentation and 6to4.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff) => Place::Nearby,
        (0x2000..=0x3fff, _) => Place::Public,
        _ => Place::Nearby,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_where_they_lie_in_any_spelling() {
        for (address, expected) in [
            ("93.184.215.14", Place::Public),
            ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", Place::Public),
            ("64:ff9b::5db8:d70e", Place::Public),
            ("10.1.2.3", Place::Internal),
            ("172.31.255.255", Place::Internal),
            ("172.32.0.1", Place::Public),
            ("192.168.0.1", Place::Internal),
            ("100.64.0.1", Place::Internal),
            ("100.128.0.1", Place::Public),
            ("fd00::1", Place::Internal),
            ("::ffff:10.0.0.1", Place::Internal),
            ("64:ff9b::a00:1", Place::Internal),
            ("127.0.0.1", Place::Nearby),
            ("127.255.0.9", Place::Nearby),
            ("0.0.0.0", Place::Nearby),
            ("169.254.169.254", Place::Nearby),
            ("::ffff:169.254.169.254", Place::Nearby),
            ("64:ff9b::a9fe:a9fe", Place::Nearby),
            ("2002:7f00:1::1", Place::Nearby),
            ("2001::1", Place::Nearby),
            ("::1", Place::Nearby),
            ("::", Place::Nearby),
            ("::7f00:1", Place::Nearby),
            ("fe80::1", Place::Nearby),
            ("fec0::1", Place::Nearby),
            ("ff02::1", Place::Nearby),
            ("224.0.0.1", Place::Nearby),
            ("255.255.255.255", Place::Nearby),
            ("198.18.0.1", Place::Nearby),
        ] {
            assert_eq!(place(address.parse().unwrap()), expected, "{address}");
        }
    }
}
