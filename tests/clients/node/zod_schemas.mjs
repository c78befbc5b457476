// Prints schemas that zod makes, one for each of its kinds of types, as `{name: schema}`.

import { z } from "zod";

const Category = z.object({
  name: z.string(),
  get parts() {
    return z.array(Category).max(2);
  },
});
const Cat = z.object({ kind: z.literal("cat"), lives: z.int().min(0).max(9) });
const Dog = z.object({ kind: z.literal("dog"), good: z.boolean() });

const types = {
  string: z.string(),
  "string of 2 to 5 characters": z.string().min(2).max(5),
  "string with a prefix": z.string().startsWith("ab"),
  "string with a suffix": z.string().endsWith("yz"),
  "string with a part": z.string().includes("mn"),
  "regular expression": z.string().regex(/^[A-Z]{2}-\d{3}$/),
  "two regular expressions": z.string().regex(/^[a-z]+$/).regex(/x/),
  "lower case": z.string().lowercase(),
  email: z.email(),
  uuid: z.uuid(),
  "uuid 4": z.uuidv4(),
  url: z.url(),
  "https url": z.url({ protocol: /^https$/ }),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  cidr: z.cidrv4(),
  base64: z.base64(),
  base64url: z.base64url(),
  jwt: z.jwt(),
  emoji: z.emoji(),
  nanoid: z.nanoid(),
  cuid2: z.cuid2(),
  ulid: z.ulid(),
  "e164 phone number": z.e164(),
  "iso date": z.iso.date(),
  "iso time": z.iso.time(),
  "iso datetime": z.iso.datetime(),
  "iso datetime with offset": z.iso.datetime({ offset: true }),
  "iso duration": z.iso.duration(),
  number: z.number(),
  "number in a range": z.number().gt(0).lte(10),
  "multiple of 0.5": z.number().multipleOf(0.5).min(0).max(20),
  integer: z.int(),
  int32: z.int32(),
  float32: z.float32(),
  boolean: z.boolean(),
  null: z.null(),
  any: z.any(),
  unknown: z.unknown(),
  never: z.never().optional(),
  literal: z.literal("fixed"),
  "several literals": z.literal(["a", 1, true, null]),
  enum: z.enum(["north", "south"]),
  "stringbool's input": z.enum(["true", "false", "yes", "no"]),
  optional: z.string().max(9).optional(),
  nullable: z.string().max(9).nullable(),
  default: z.string().max(9).default("x"),
  readonly: z.array(z.int()).max(3).readonly(),
  array: z.array(z.enum(["a", "b"])),
  "array of 2 to 3": z.array(z.int()).min(2).max(3),
  tuple: z.tuple([z.literal("at"), z.number()]),
  "tuple with a rest": z.tuple([z.literal("at")]).rest(z.int()),
  object: z.object({ a: z.boolean(), b: z.boolean().optional() }),
  "strict object": z.strictObject({ a: z.boolean() }),
  "loose object": z.looseObject({ a: z.boolean() }),
  "object with a catchall": z.object({ a: z.boolean() }).catchall(z.int()),
  record: z.record(z.string(), z.boolean()),
  "record of an enum": z.record(z.enum(["north", "south"]), z.number()),
  "partial record": z.partialRecord(z.enum(["north", "south"]), z.number()),
  "record with a key pattern": z.record(z.string().regex(/^k\d+$/), z.int()),
  union: z.union([z.int().min(0).max(9), z.string().max(5)]),
  "union of objects": z.union([Cat, Dog]),
  "discriminated union": z.discriminatedUnion("kind", [Cat, Dog]),
  intersection: z.intersection(z.looseObject({ a: z.boolean() }), z.looseObject({ b: z.boolean() })),
  recursive: Category,
  json: z.json(),
  description: z.string().max(9).describe("A short text.").meta({ title: "Text", examples: ["x"] }),
};

const schemas = {};
for (const [name, type] of Object.entries(types)) schemas[name] = z.toJSONSchema(z.object({ value: type }));
schemas["draft 7"] = z.toJSONSchema(z.object({ value: z.tuple([z.int(), z.boolean()]) }), { target: "draft-7" });
schemas["input side"] = z.toJSONSchema(z.object({ value: z.string().max(9).default("x") }), { io: "input" });
schemas["shared definitions"] = z.toJSONSchema(z.object({ first: Cat, second: Cat, third: Dog }), { reused: "ref" });
console.log(JSON.stringify(schemas));
