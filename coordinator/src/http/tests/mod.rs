//! Tests over the router and over sockets.
