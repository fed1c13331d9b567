// What is used of Node here, so that its types need not be installed.

declare module "node:readline" {
  export function createInterface(options: { input: unknown }): AsyncIterable<string>;
}

declare const process: {
  stdin: unknown;
  stdout: { write(text: string): boolean };
};
