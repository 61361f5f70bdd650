package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// A cluster that has what etc's fragments say lacks nothing, and without them it
// lacks something: doctor and the files tell the same.
func TestFragmentsOfEtc(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../../etc", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	conf := text.ParseConfig([]byte(recorded(t, "22.05.8-plain.config")))
	conf["PriorityType"] = "priority/multifactor"
	var example, gate string
	for line := range strings.Lines(read("slurm.conf.slurmbridge")) {
		if rest, ok := strings.CutPrefix(line, "#NodeName="); ok {
			example = "NodeName=" + rest
		}
		if strings.HasPrefix(line, "PartitionName=") {
			gate = strings.TrimSpace(line) + " State=UP\n"
		}
		line, _, _ = strings.Cut(line, "#")
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			conf[name] = value
		}
	}
	settings := config.Default()
	facts := &Facts{
		Config: conf, Nodes: text.ParseNodes([]byte(example)), Partitions: text.ParsePartitions([]byte(recorded(t, "22.05.8-plain.partitions") + gate)),
		Hooks: hooks(conf), User: "slurm", Settings: settings,
		ConfDir: "/etc/slurm", JobSubmitLua: ptr("-- " + Signature), GresConf: ptr(read("gres.conf.slurmbridge")),
	}
	if got := Examine(facts); len(got) != 0 {
		t.Errorf("with everything that etc names: %v", checks(got))
	}
	for name, check := range map[string]string{
		"GresTypes": "gres-types", "DefMemPerCPU": "default-memory", "JobSubmitPlugins": "lua", "PriorityFlags": "accrue",
		"Prolog": "hook-prolog", "Epilog": "hook-epilog", "TaskProlog": "hook-taskprolog",
		"EpilogSlurmctld": "epilog-slurmctld", "SchedulerParameters": "scheduler",
	} {
		was := conf[name]
		conf[name] = ""
		facts.Hooks = hooks(conf)
		if got := strings.Join(checks(Examine(facts)), ","); !strings.Contains(got, check) {
			t.Errorf("without %s: %q", name, got)
		}
		conf[name] = was
	}
}
