// Runs first in every engine, before the extension: takes away what would make
// an answer depend on more than the request (clock, randomness, code from
// text). Returns what the worker keeps for itself; the extension never sees it.
(() => {
  "use strict";
  // Kept here, because the extension may replace any of them later.
  const RealDate = Date;
  const { construct } = Reflect;
  const { defineProperty, freeze, getPrototypeOf, keys } = Object;
  const { call } = Function.prototype;
  const slice = call.bind(String.prototype.slice);
  const wellFormed = call.bind(String.prototype.toWellFormed);
  const dateText = call.bind(RealDate.prototype.toString);
  const Refused = TypeError;

  const define = (target, name, value) =>
    defineProperty(target, name, { value, writable: true, enumerable: false, configurable: true });

  let snapshot;
  const now = () => {
    if (snapshot === undefined) throw new Refused("there is no clock while the extension loads");
    return snapshot;
  };

  function FixedDate(...args) {
    if (new.target === undefined) return dateText(new RealDate(now()));
    return construct(RealDate, args.length === 0 ? [now()] : args, new.target);
  }
  define(FixedDate, "name", "Date");
  define(FixedDate, "length", 7);
  define(FixedDate, "now", now);
  define(FixedDate, "parse", RealDate.parse);
  define(FixedDate, "UTC", RealDate.UTC);
  defineProperty(FixedDate, "prototype", { value: RealDate.prototype, writable: false });
  define(RealDate.prototype, "constructor", FixedDate);
  define(globalThis, "Date", FixedDate);

  define(Math, "random", () => {
    throw new Refused("there is no randomness in a policy extension");
  });

  function NoFunction() {
    throw new Refused("code from text is not available in a policy extension");
  }
  defineProperty(NoFunction, "prototype", { value: Function.prototype, writable: false });
  const kinds = [function () {}, async function () {}, function* () {}, async function* () {}];
  for (let i = 0; i < kinds.length; i++) {
    define(getPrototypeOf(kinds[i]), "constructor", NoFunction);
  }
  define(globalThis, "Function", NoFunction);
  delete globalThis.eval;
  // No job is ever run, so that nothing happens after `evaluate` has returned.
  delete globalThis.queueMicrotask;

  const freezeAll = (value) => {
    if (typeof value === "object" && value !== null) {
      const names = keys(value);
      for (let i = 0; i < names.length; i++) freezeAll(value[names[i]]);
      freeze(value);
    }
    return value;
  };

  return {
    begin: (moment) => {
      snapshot = moment;
    },
    freeze: freezeAll,
    cut: (text, length) => wellFormed(slice(text, 0, length)),
  };
})();
