// Unpacks the browser below TMPDIR, and prints its path and that of its libraries.
process.env.AWS_EXECUTION_ENV = "AWS_Lambda_nodejs20.x"; // unpacks the libraries too
const { default: chromium } = await import("@sparticuz/chromium");
const program = await chromium.executablePath();
console.log(JSON.stringify({ program, libraries: process.env.LD_LIBRARY_PATH }));
