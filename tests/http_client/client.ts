// Sends and receives by a client that is generated from the description of the HTTP door.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const [url, token] = process.argv.slice(2);
const client = createClient<paths>({
  baseUrl: url,
  headers: { authorization: `Bearer ${token}` },
});
const params = { path: { queue: "orders" } };

const key = { "idempotency-key": "order-17" };
const body = { body: "ten screws ½", label: "order 17", properties: { region: "east" } };
const ids: string[] = [];
for (let attempt = 0; attempt < 2; attempt++) {
  const { data, error } = await client.POST("/v1/queues/{queue}/messages", {
    params: { ...params, header: key },
    body,
  });
  assert.ok(data && "id" in data, JSON.stringify(error));
  ids.push(data.id);
}
assert.equal(ids[0], ids[1]);

const locked = await client.POST("/v1/queues/{queue}/locks", { params, body: { lock_s: 60, limit: 1, wait_s: 0 } });
assert.equal(locked.data?.messages.length, 1);
const [message] = locked.data!.messages;
assert.equal(message.body, "ten screws ½");
assert.equal(message.id, ids[0]);
const removed = await client.DELETE("/v1/locks/{lock}", {
  params: { path: { lock: message.lock_id } },
});
assert.equal(removed.response.status, 204);

const missing = await client.GET("/v1/queues/{queue}", { params: { path: { queue: "missing" } } });
assert.equal(missing.error?.code, "no_such_queue");
console.log("done");
