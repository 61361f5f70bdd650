// Package etc_test holds the files of etc to what they promise.
package etc_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// analyze runs systemd-analyze on copies of the units that name programs of this machine, which has none of ours.
func analyze(t *testing.T, unit string, args ...string) string {
	t.Helper()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	text := must.Get(os.ReadFile(unit))(t)
	s := regexp.MustCompile(`(?m)^(Exec\w+)=/usr/bin/\S+`).ReplaceAllString(string(text), "$1=/bin/true")
	s = regexp.MustCompile(`(?m)^Documentation=.*\n`).ReplaceAllString(s, "")
	file := filepath.Join(t.TempDir(), unit)
	must.OK(t, os.WriteFile(file, []byte(s), 0o600))
	if name, is := strings.CutSuffix(file, ".timer"); is {
		must.OK(t, os.WriteFile(name+".service", []byte("[Service]\nExecStart=/bin/true\n"), 0o600))
	}
	out, err := exec.Command(tool, append(args, file)...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestUnitsAreWellFormed(t *testing.T) {
	for _, unit := range []string{
		"slurmbridge.service", "slurmbridge-notify.service", "slurmbridge-notify.timer",
		"gpuprof.service",
	} {
		out := analyze(t, unit, "verify", "--man=no")
		for line := range strings.Lines(out) {
			if strings.Contains(line, unit) {
				t.Errorf("%s", line)
			}
		}
	}
}

// What a daemon may do that it need not: 0 nothing, 10 everything.
func TestUnitsAreHardened(t *testing.T) {
	for unit, most := range map[string]float64{"slurmbridge.service": 1.6, "gpuprof.service": 3.0} {
		out := analyze(t, unit, "security", "--offline=yes", "--no-pager")
		m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("%s: no level in\n%s", unit, out)
		}
		if level, err := strconv.ParseFloat(m[1], 64); err != nil || level > most {
			t.Errorf("%s: exposure %s, at most %g (systemd-analyze security --offline=yes etc/%s says of what)", unit, m[1],
				most, unit)
		}
	}
}

// The units name what the programs and packages have.
func TestUnitsNameWhatThereIs(t *testing.T) {
	for unit, want := range map[string][]string{
		"slurmbridge.service": {
			"ExecStart=/usr/bin/slurmbridge serve\n", "User=slurm\n", "Type=notify\n", "ExecReload=/usr/bin/slurmbridge check-config\nExecReload=/bin/kill -HUP $MAINPID\n",
			"StateDirectory=slurmbridge\n", "RuntimeDirectory=slurmbridge\n", "RuntimeDirectoryPreserve=yes\n",
			"Restart=always\n",
		},
		"slurmbridge-notify.service": {"ExecStart=/usr/bin/slurmbridge notify\n", "User=slurm\n", "Type=oneshot\n"},
		"slurmbridge-notify.timer":   {"OnUnitInactiveSec=2min\n", "WantedBy=timers.target\n"},
		"gpuprof.service": {
			"ExecStart=/usr/bin/gpuprof serve\n", "User=root\n", "Type=notify\n", "Restart=always\n",
			"ReadWritePaths=/run/slurmbridge /var/spool/slurmbridge\n",
		},
	} {
		text := must.Get(os.ReadFile(unit))(t)
		for _, w := range want {
			must.Contain(t, string(text), "\n"+w, "the lines of %s", unit)
		}
	}
}

// A mail program may be setuid or setgid: what makes systemd set NoNewPrivileges would keep each mail back.
func TestMailsMayBeHandedOver(t *testing.T) {
	text := string(must.Get(os.ReadFile("slurmbridge-notify.service"))(t))
	for _, setting := range strings.Fields(`NoNewPrivileges SystemCallFilter SystemCallArchitectures RestrictAddressFamilies
		RestrictNamespaces RestrictRealtime RestrictSUIDSGID PrivateDevices PrivateNetwork
		ProtectKernelTunables ProtectKernelModules
		ProtectKernelLogs ProtectClock ProtectHostname MemoryDenyWriteExecute LockPersonality DynamicUser`) {
		if strings.Contains(text, "\n"+setting+"=") {
			t.Errorf("%s is set", setting)
		}
	}
	if strings.Contains(text, "ProtectSystem=strict") {
		t.Error("/var/spool can't be written")
	}
}

// With the capabilities that its unit leaves it, the agent sees whose step a process descends from.
func TestAgentSeesStepsOfJobs(t *testing.T) {
	if dir := os.Getenv("STEP_OF"); dir != "" {
		fmt.Printf("job %d\n", prolog.StepOf(dir))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: other capabilities")
	}
	text := must.Get(os.ReadFile("gpuprof.service"))(t)
	names := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(text)
	if names == nil {
		t.Fatal("the unit bounds no capabilities")
	}
	bound := strings.ReplaceAll(strings.ToLower(strings.ReplaceAll("-all "+string(names[1]), "CAP_", "+")), " ", ",")
	program := filepath.Join(t.TempDir(), "slurmstepd")
	must.OK(t, os.WriteFile(program, must.Get(os.ReadFile("/bin/sleep"))(t), 0o755))
	step := &exec.Cmd{Path: program, Args: []string{"slurmstepd: [12.batch]", "600"}}
	must.OK(t, step.Start())
	defer func() { _ = step.Process.Kill(); _ = step.Wait() }()
	self := must.Get(os.Executable())(t)
	agent := exec.Command("setpriv", "--bounding-set", bound, "--inh-caps", "-all", self, "-test.run",
		"^TestAgentSeesStepsOfJobs$")
	agent.Env = append(os.Environ(), fmt.Sprintf("STEP_OF=/proc/%d", step.Process.Pid))
	out, err := agent.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "job 12\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// What a daemon may take of its machine is bounded, and slurmctld outlives the controller's.
func TestUnitsAreBounded(t *testing.T) {
	for unit, score := range map[string]int{"slurmbridge.service": 1, "gpuprof.service": -1} {
		text := must.Get(os.ReadFile(unit))(t)
		for _, key := range []string{"MemoryHigh", "MemoryMax", "TasksMax", "OOMScoreAdjust"} {
			m := regexp.MustCompile(`(?m)^` + key + `=(-?\d+)[MG]?$`).FindSubmatch(text)
			if m == nil {
				t.Errorf("%s: no %s", unit, key)
				continue
			}
			if n, err := strconv.Atoi(string(m[1])); err != nil || key == "OOMScoreAdjust" && n*score <= 0 {
				t.Errorf("%s: %s=%s", unit, key, m[1])
			}
		}
	}
}
