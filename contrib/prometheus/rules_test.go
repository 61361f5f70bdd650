package prometheus

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/contrib/prometheus/series"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	read(t, "slurmbridge.rules.yml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 15 {
		t.Fatalf("%d rules", len(all))
	}
	return all
}

// Each rule asks for series that there are, each alert says what is wrong and what to
// do, and the README has a chapter on it.
func TestRulesAskForSeriesThatThereAre(t *testing.T) {
	readme := must.Get(os.ReadFile("README.md"))(t)
	known := series.Daemons()
	name := regexp.MustCompile(`^[a-z]+:[a-z_]+:[a-z0-9_]+$`) // level:metric:operations
	for _, r := range rules(t) {
		if r.Record != "" {
			if !name.MatchString(r.Record) {
				t.Errorf("%s is not level:metric:operations", r.Record)
			}
			known[r.Record] = nil
		}
	}
	chapters := strings.Count(string(readme), "\n## ")
	for _, r := range rules(t) {
		if err := known.Check(r.Expr); err != nil {
			t.Errorf("%s%s: %v", r.Record, r.Alert, err)
		}
		if r.Alert == "" {
			continue
		}
		chapters--
		for _, a := range []string{"summary", "description", "runbook"} {
			if r.Annotations[a] == "" {
				t.Errorf("%s has no %s", r.Alert, a)
			}
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		chapter := "README.md#" + strings.ToLower(r.Alert)
		if !strings.HasSuffix(r.Annotations["runbook"], chapter) || !strings.HasSuffix(r.Annotations["runbook_url"], chapter) ||
			!strings.Contains(string(readme), "\n## "+r.Alert+"\n") {
			t.Errorf("%s: no chapter in README.md, or the runbook doesn't lead there", r.Alert)
		}
	}
	must.Equal(t, chapters, 0, "chapters of README.md without an alert")
}

// What a runbook looks for in the daemon's log is in a message of the daemon's.
func TestRunbooksFindMessages(t *testing.T) {
	var messages strings.Builder
	for _, dir := range []string{"loop", "cmd/slurmbridge", "../gpuprof/recordhttp"} {
		for _, file := range must.Get(filepath.Glob("../../slurmbridge/" + dir + "/*.go"))(t) {
			messages.Write(must.Get(os.ReadFile(file))(t))
		}
	}
	logged := strings.Join(regexp.MustCompile(`(?:Error|Warn|Info)\("[^"]*"`).FindAllString(messages.String(), -1), "\n")
	pattern := regexp.MustCompile(`journalctl -u slurmbridge -g (?:'([^']*)'|(\w+))`)
	n := 0
	for _, r := range rules(t) {
		for _, m := range pattern.FindAllStringSubmatch(r.Annotations["runbook"], -1) {
			for word := range strings.SplitSeq(m[1]+m[2], "|") {
				n++
				must.Equal(t, strings.Contains(logged, word), true, "%s: %q", r.Alert, word)
			}
		}
	}
	must.Equal(t, n > 4, true, "patterns")
}

// Each alert has a case in which it fires and one in which it doesn't, each recorded
// figure one with a value; promtool tries them.
func TestEachRuleHasItsCase(t *testing.T) {
	var cases struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Exp  []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
			Exprs []struct{ Expr string } `yaml:"promql_expr_test"`
		}
	}
	read(t, "rules_test.yml", &cases)
	all := cases.Tests
	read(t, "shadow_test.yml", &cases)
	fires, silent, figure := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range append(all, cases.Tests...) {
		for _, a := range c.Alerts {
			if len(a.Exp) > 0 {
				fires[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
		for _, e := range c.Exprs {
			figure[e.Expr] = true
		}
	}
	for _, r := range rules(t) {
		if r.Alert != "" && (!fires[r.Alert] || !silent[r.Alert]) {
			t.Errorf("%s: fires in a case %v, and doesn't in one %v", r.Alert, fires[r.Alert], silent[r.Alert])
		}
		if r.Record != "" && !figure[r.Record] {
			t.Errorf("%s has no case", r.Record)
		}
	}
}

func TestPromtool(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", "slurmbridge.rules.yml"},
		{"check", "config", "--syntax-only", "prometheus.yml"},
		{"test", "rules", "rules_test.yml", "shadow_test.yml"},
	} {
		if err := series.Promtool(t, args...); err != nil {
			t.Error(err)
		}
	}
}

// What queries of the daemons' series are refused for.
func TestQueriesThatAreRefused(t *testing.T) {
	s := series.Daemons()
	for _, c := range []struct{ query, want string }{
		{`sum by (state, job) (slurmbridge_jobs{instance=~"a|b"})`, ""},
		{`histogram_quantile(0.9, sum by (le) (rate(slurmbridge_costart_skew_seconds_bucket[5m])))`, ""},
		{`rate(slurmbridge_slurm_command_duration_seconds_sum{command="squeue"}[5m])`, ""},
		{`delta(gpuprof_compute_mode{mode="default"}[5m])`, ""},
		{`gpuprof_gpu_utilization_ratio{job="gpuprof"} and on (gpu, instance) gpuprof_gpu_memory_used_bytes`, ""},
		{`up{job="x"} == 0`, ""},
		{`max by (job) (slurmbridge_gpus offset 5m) > bool 1.5e3 unless on (job) up`, ""},
		{`slurmbridge_job`, "no series"},
		{`slurmbridge_costart_skew_seconds`, "no series"},
		{`slurmbridge_jobs{state="a", stat=~"b,c"}`, `no label "stat"`},
		{`slurmbridge_jobs{stat="waiting"}`, `no label "stat"`},
		{`sum by (kind) (slurmbridge_jobs)`, `label "kind"`},
		{`slurmbridge_jobs / on (kind) up`, `label "kind"`},
		{`rate(slurmbridge_jobs[5m])`, "no counter"},
		{`delta(slurmbridge_groups_total[5m])`, "is a counter"},
		{`sum(rate(slurmbridge_groups_total{mode="x"}[5m])) / slurmbridge_gpu`, "no series"},
	} {
		err := s.Check(c.query)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.query, err, c.want)
		}
	}
}
