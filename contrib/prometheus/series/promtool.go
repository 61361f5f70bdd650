package series

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Require skips a test where a program of Prometheus's is missing, or fails it if
// SLURMBRIDGE_REQUIRE_PROMETHEUS is set.
func Require(tb testing.TB, program string) {
	tb.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("SLURMBRIDGE_REQUIRE_PROMETHEUS") != "" {
		tb.Fatalf("no %s: contrib/install-deps --prometheus", program)
	}
	tb.Skipf("no %s: contrib/install-deps --prometheus", program)
}

// Promtool runs promtool; its output is the error.
func Promtool(tb testing.TB, args ...string) error {
	tb.Helper()
	Require(tb, "promtool")
	if out, err := exec.CommandContext(tb.Context(), "promtool", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Syntax has promtool parse queries, as rules of a file of their own.
func Syntax(tb testing.TB, queries ...string) error {
	tb.Helper()
	var rules strings.Builder
	rules.WriteString("groups:\n- name: queries\n  rules:\n")
	for i, query := range queries {
		fmt.Fprintf(&rules, "  - {record: query_%d, expr: %q}\n", i, query)
	}
	file := filepath.Join(tb.TempDir(), "queries.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return Promtool(tb, "check", "rules", file)
}
