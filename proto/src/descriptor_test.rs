//! The generated messages are complete, and the adapters' list of calls is that of the `.proto` files.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::rpcs::{self, admin_unary, messaging_unary, namesrv_unary};

fn files() -> Vec<FileDescriptorProto> {
    let bytes: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    FileDescriptorSet::decode(bytes).expect("the build wrote a descriptor set").file
}

/// Messages, fields, enums and enum values of a message and all inside it; map entries are no messages.
fn counts_of(message: &DescriptorProto) -> [usize; 4] {
    if message.options.as_ref().is_some_and(|options| options.map_entry()) {
        return [0; 4];
    }
    let values = message.enum_type.iter().map(|inner| inner.value.len()).sum();
    let own = [1, message.field.len(), message.enum_type.len(), values];
    message.nested_type.iter().map(counts_of).fold(own, add)
}

fn add(left: [usize; 4], right: [usize; 4]) -> [usize; 4] {
    std::array::from_fn(|i| left[i] + right[i])
}

#[test]
fn the_public_protocol_is_complete() {
    let public: Vec<_> = files().into_iter().filter(|file| file.package() == "apache.rocketmq.v2").collect();
    let mut counts = [0; 4];
    let mut rpcs = 0;
    for file in &public {
        counts = file.message_type.iter().map(counts_of).fold(counts, add);
        let values = file.enum_type.iter().map(|inner| inner.value.len()).sum();
        counts = add(counts, [0, 0, file.enum_type.len(), values]);
        rpcs += file.service.iter().map(|service| service.method.len()).sum::<usize>();
    }
    assert_eq!(counts, [106, 365, 17, 128], "messages, fields, enums, enum values");
    assert_eq!(rpcs, 33);
}

/// (method, request, response) of every call of a service, `unary` ones or the others.
fn calls_of(service: &str, unary: bool) -> Vec<(String, String, String)> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let mut calls = Vec::new();
    for file in files() {
        for found in file.service.iter().filter(|found| format!("{}.{}", file.package(), found.name()) == service) {
            for method in &found.method {
                if (method.client_streaming() || method.server_streaming()) != unary {
                    let call = (method.name().to_owned(), last(method.input_type()), last(method.output_type()));
                    calls.push(call);
                }
            }
        }
    }
    calls.sort();
    calls
}

macro_rules! rows {
    ($($method:ident $name:literal $request:ident $response:ident;)*) => {{
        let mut rows = vec![$(($name.to_owned(), stringify!($request).to_owned(), stringify!($response).to_owned())),*];
        rows.sort();
        rows
    }};
}

#[test]
fn every_unary_call_has_an_adapter() {
    assert_eq!(messaging_unary!(rows), calls_of(rpcs::MESSAGING, true));
    assert_eq!(admin_unary!(rows), calls_of(rpcs::ADMIN, true));
    assert_eq!(namesrv_unary!(rows), calls_of(rpcs::NAMESRV, true));
    assert_eq!(calls_of(rpcs::PEER, true).len(), 2);
}

#[test]
fn the_streaming_calls_are_the_known_ones() {
    let names = |service: &str| calls_of(service, false).into_iter().map(|call| call.0).collect::<Vec<_>>();
    assert_eq!(names(rpcs::MESSAGING), ["PullMessage", "ReceiveMessage", "Telemetry"]);
    assert_eq!(names(rpcs::ADMIN), [""; 0]);
    assert_eq!(names(rpcs::NAMESRV), ["Register"]);
    assert_eq!(names(rpcs::PEER), ["Append"]);
}
