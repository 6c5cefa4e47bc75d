//! The acceptance checks, each as the tests of its name.

mod a;
mod b;
mod c;
mod d;
mod e;
mod f;
mod g;
mod g_places;
mod h;
mod j;
mod k;
mod m;
mod n;
mod o;
