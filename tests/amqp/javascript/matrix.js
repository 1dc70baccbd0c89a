// Send one message for each line of values, or receive them and print what came.
// Usage: node matrix.js send|receive PORT ADDRESS COUNT < LINES     (each line: TYPE TEXT)
'use strict';
const rhea = require('rhea');
const [act, port, address, rounds] = process.argv.slice(2);
const lines = require('fs').readFileSync(0, 'utf8').split('\n').filter((line) => line);
const values = lines.map((line) => line.split(' '));
const types = rhea.types;
const LIST = [types.wrap_int(1), 'two', [true, null], { k: 2.5 }];
const hex = (text) => Buffer.from(text, 'hex');
const wide = (text) => { // 64 bits: a number where it is exact, and bytes elsewhere
  const number = Number(text);
  if (Number.isSafeInteger(number)) return number;
  const buffer = Buffer.alloc(8);
  buffer.writeBigUInt64BE(BigInt.asUintN(64, BigInt(text)));
  return buffer;
};
const bytes = (size) => Buffer.from(Uint8Array.from({ length: size }, (_, index) => index % 251));
const MAKE = {
  null: () => null,
  boolean: (text) => text === 'true',
  ubyte: (text) => types.Ubyte(Number(text)),
  ushort: (text) => types.Ushort(Number(text)),
  uint: (text) => types.Uint(Number(text)),
  ulong: (text) => types.Ulong(wide(text)),
  byte: (text) => types.Byte(Number(text)),
  short: (text) => types.Short(Number(text)),
  int: (text) => types.Int(Number(text)),
  long: (text) => types.Long(wide(text)),
  float: (text) => types.Float(hex(text).readFloatBE()),
  double: (text) => types.Double(hex(text).readDoubleBE()),
  decimal32: (text) => types.Decimal32(hex(text)),
  decimal64: (text) => types.Decimal64(hex(text)),
  decimal128: (text) => types.Decimal128(hex(text)),
  char: (text) => types.CharUTF32(Number(text)),
  timestamp: (text) => types.Timestamp(Number(text)),
  uuid: (text) => types.Uuid(hex(text.replaceAll('-', ''))),
  binary: (text) => hex(text),
  string: (text) => hex(text).toString(),
  symbol: (text) => types.wrap_symbol(text),
  list: () => LIST,
  map: () => ({ k: LIST }),
  large: (text) => bytes(Number(text)),
};
const whole = (value, signed) => {
  if (!Buffer.isBuffer(value)) return String(value);
  const number = value.readBigUInt64BE();
  return String(signed ? BigInt.asIntN(64, number) : number);
};
const packed = (method, size) => (value) => {
  const buffer = Buffer.alloc(size);
  buffer[method](value);
  return buffer.toString('hex');
};
const SHOW = {
  ulong: (value) => whole(value, false),
  long: (value) => whole(value, true),
  float: packed('writeFloatBE', 4),
  double: packed('writeDoubleBE', 8),
  timestamp: (value) => String(value.getTime()),
  uuid: (value) => value.toString('hex').replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-'),
  string: (value) => Buffer.from(value).toString('hex'),
  list: (value) => String(JSON.stringify(value) === '[1,"two",[true,null],{"k":2.5}]'),
  map: (value) => String(JSON.stringify(value) === '{"k":[1,"two",[true,null],{"k":2.5}]}'),
  large: (value) => String(value.equals(bytes(value.length)) && value.length),
};
['decimal32', 'decimal64', 'decimal128', 'binary'].forEach((type) => {
  SHOW[type] = (value) => value.toString('hex');
});
const show = (type, value) => (SHOW[type] || String)(value);
const JMS = {
  message_id: 'ID:1', correlation_id: 'c-1', subject: 'type', reply_to: 'answers', to: 'jms',
  content_type: 'text/plain', content_encoding: 'gzip', creation_time: 1700000000000,
  group_id: 'g', group_sequence: 7, reply_to_group_id: 'r',
};
const container = rhea.create_container();
let done = 0;
if (act === 'send') {
  container.once('sendable', (context) => values.forEach(([type, text]) => {
    const message = { durable: true };
    if (type === 'jms') {
      Object.assign(message, JMS, { priority: 9, ttl: 600000, user_id: Buffer.from('ann'), body: 'jms' });
    } else {
      message.body = MAKE[type](text);
      if (!['null', 'list', 'map', 'large'].includes(type)) {
        message.application_properties = { p: MAKE[type](text) };
        message.message_annotations = { 'x-opt-v': MAKE[type](text) };
      }
    }
    context.sender.send(message);
  }));
  container.on('accepted', (context) => {
    done += 1;
    if (done === values.length) context.connection.close();
  });
} else {
  container.on('message', (context) => {
    const [type] = values[done % values.length];
    const message = context.message;
    const shown = [];
    if (type === 'jms') {
      shown.push(...Object.keys(JMS).map((name) => String(Number(message[name]) || message[name])));
      shown.push(message.priority, message.ttl > 0 && message.ttl <= 600000, message.user_id);
    } else {
      shown.push(show(type, message.body));
      if (message.application_properties) {
        shown.push(show(type, message.application_properties.p));
        shown.push(show(type, message.message_annotations['x-opt-v']));
      }
    }
    console.log(type, shown.join(' '));
    done += 1;
    if (done === values.length * Number(rounds)) context.connection.close();
  });
}
['rejected', 'sender_error', 'receiver_error', 'connection_error'].forEach((name) => {
  container.on(name, (context) => {
    console.error(name, String(context.error || (context.delivery && context.delivery.remote_state.error)));
    process.exit(1);
  });
});
const connection = container.connect({ port: Number(port), host: '127.0.0.1', reconnect: false });
if (act === 'send') connection.open_sender(address);
else connection.open_receiver({ source: address, credit_window: 20 });
