// Send messages with values of many types, receive them again, and compare; then settle in each way.
// Usage: node exchange.js PORT QUEUE
'use strict';
const assert = require('assert');
const rhea = require('rhea');
const [port, queue] = [Number(process.argv[2]), process.argv[3]];
const types = rhea.types;
const bodies = [
  'text', 'é\u4e00', 17, -5, 1.5, true, null, Buffer.from([0, 1, 255]), ['a', 1], { key: 'value' },
  new Date(1700000000123),
];
const container = rhea.create_container({ id: 'javascript' });
const got = [];
let accepted = 0;
let sender;

container.on('connection_open', (context) => {
  sender = context.connection.open_sender(queue);
});
container.once('sendable', () => {
  bodies.forEach((body, index) => sender.send({
    body,
    message_id: index,
    correlation_id: 'c' + index,
    subject: 'message ' + index,
    priority: 8,
    durable: true,
    content_type: 'text/plain',
    group_id: 'g',
    application_properties: { index, half: 0.5, yes: true, word: 'x', wide: types.wrap_long(7) },
    message_annotations: { 'x-opt-note': 'n' },
  }));
});
container.on('accepted', (context) => {
  accepted += 1;
  if (accepted === bodies.length) {
    context.connection.open_receiver({ source: queue, autoaccept: false, credit_window: 100 });
  }
});
container.on('rejected', (context) => {
  throw new Error(JSON.stringify(context.delivery.remote_state));
});
container.on('message', (context) => {
  got.push(context.message);
  context.delivery.accept();
  if (got.length < bodies.length) return;
  got.forEach((message, index) => {
    assert.deepStrictEqual(message.body, bodies[index]);
    assert.strictEqual(message.message_id, index);
    assert.strictEqual(message.correlation_id, 'c' + index);
    assert.strictEqual(message.subject, 'message ' + index);
    assert.strictEqual(message.priority, 8);
    assert.strictEqual(message.group_id, 'g');
    assert.strictEqual(message.content_type, 'text/plain');
    assert.strictEqual(message.application_properties.index, index);
    assert.strictEqual(message.application_properties.half, 0.5);
    assert.strictEqual(message.message_annotations['x-opt-note'], 'n');
  });
  context.connection.close();
});
container.on('connection_close', () => {
  console.log('exchanged ' + got.length);
  process.exit(0);
});
container.on('disconnected', () => { throw new Error('disconnected'); });
container.connect({ port, host: '127.0.0.1', reconnect: false });
