use super::super::item_format::ReasoningFormat;
use super::*;
use crate::calls::output_format::output_spec::ToolCallIds;

fn format() -> ItemFormat {
    let response = ResponseId::from_bytes([1; 16]);
    ItemFormat { response, calls: ToolCallIds::from([2; 16]), reasoning: ReasoningFormat::default() }
}

fn text(text: &str) -> Step {
    Step::Text { text: text.to_owned(), tokens: Vec::new() }
}

/// Steps of a generation, as they are stored and read again.
fn steps(generation: u64, texts: &[&str]) -> OutputSteps {
    let steps = texts.iter().copied().map(text).collect();
    let output = OutputSteps { generation: Some(generation), format: format(), steps };
    OutputSteps::parse(&serde_json::to_string(&output).unwrap()).unwrap().unwrap()
}

fn live() -> LiveResponse {
    LiveResponse::new(State::default())
}

/// The steps after the first `known`, and why there will be no more.
fn after(live: &LiveResponse, known: usize) -> (Vec<Step>, Option<LiveEnd>) {
    let news = live.steps_after(known);
    (news.steps, news.end)
}

#[test]
fn parts_of_another_node_are_added_until_the_response_ends() {
    let live = live();
    assert!(live.may_run_elsewhere() && live.generation().is_none());
    live.add_part(steps(7, &[]));
    assert_eq!((live.generation(), live.is_running()), (Some(7), true));
    live.add_part(steps(7, &["a", "b"]));
    assert_eq!(after(&live, 1), (vec![text("b")], None));
    live.end_with(Some(steps(7, &["a", "b", "c"])));
    assert_eq!(after(&live, 2), (vec![text("c")], Some(LiveEnd::Closed)));
    live.add_part(steps(7, &["d"]));
    assert_eq!(after(&live, 3), (vec![], Some(LiveEnd::Closed)), "it has ended");
}

#[test]
fn steps_of_two_generations_are_not_mixed() {
    for change in [
        |live: &LiveResponse| live.add_part(steps(8, &["x"])),
        |live: &LiveResponse| live.end_with(Some(steps(8, &["x", "y"]))),
        LiveResponse::interrupt,
    ] {
        let live = live();
        live.add_part(steps(7, &["a"]));
        change(&live);
        assert_eq!(after(&live, 0), (vec![text("a")], Some(LiveEnd::Interrupted)));
    }
    // This node generates it again: streams see another number.
    let live = live();
    live.add_part(steps(7, &["a"]));
    live.start(Some(8), format());
    live.extend(vec![text("b")]);
    live.add_part(steps(7, &["late"]));
    live.interrupt();
    let news = live.steps_after(0);
    assert_eq!((news.generation, news.steps, news.end), (Some(8), vec![text("b")], None));
    assert!(!live.may_run_elsewhere());
}

#[test]
fn steps_that_were_too_many_are_missing_at_the_end() {
    let live = live();
    live.add_part(steps(7, &["a"]));
    live.end_with(None);
    assert_eq!(after(&live, 1), (vec![], Some(LiveEnd::LacksSteps)));
    // Those that nothing is known of were never sent either.
    let unknown = LiveResponse::new(State::default());
    unknown.end_with(None);
    assert_eq!(after(&unknown, 0), (vec![], Some(LiveEnd::Closed)));
}

#[test]
fn a_stream_that_begins_after_the_end_follows_something_new() {
    let all = LiveResponses::default();
    let id = ResponseId::from_bytes([1; 16]);
    let first = all.get_or_create(id);
    assert!(Arc::ptr_eq(&first, &all.get_or_create(id)));
    first.interrupt();
    let second = all.get_or_create(id);
    assert!(!Arc::ptr_eq(&first, &second) && second.may_run_elsewhere());
    let kept = all.keep(id);
    assert!(Arc::ptr_eq(&kept, &second));
    kept.start(Some(3), format());
    assert!(all.is_running(id));
    all.close(id, LiveEnd::Closed);
    assert!(!all.is_running(id));
}

#[test]
fn steps_name_their_generation_only_if_nodes_share_the_store() {
    let alone = OutputSteps { generation: None, ..steps(1, &[]) };
    let json = serde_json::to_string(&alone).unwrap();
    assert!(!json.contains("generation"), "{json}");
    assert_eq!(generation_of(&json), None);
    assert_eq!(generation_of(&serde_json::to_string(&steps(5, &["a"])).unwrap()), Some(5));
    assert_eq!(generation_of(""), None);
}
