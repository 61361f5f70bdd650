package etc_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile(name))(t)
	return string(text)
}

// settings reads NAME=value lines into conf and returns the line of the nodes.
func settings(conf map[string]string, text string) (nodes string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		switch name, value, ok := strings.Cut(strings.TrimSpace(line), "="); {
		case name == "NodeName":
			nodes = strings.TrimSpace(line)
		case ok:
			conf[name] = value
		}
	}
	return nodes
}

// With each example and slurm.conf.slurmbridge doctor finds nothing missing.
func TestDoctorFindsExamplesComplete(t *testing.T) {
	dirs := must.Get(filepath.Glob("examples/*/slurm.conf"))(t)
	must.Equal(t, len(dirs), 4, "examples")
	active := config.Default()
	active.Mode = "active"
	script := doctor.Signature + ".modify()"
	examine := func(slurmConf, gresConf string) []doctor.Finding {
		conf := text.ParseConfig([]byte(read(t, "../slurmbridge/doctor/testdata/22.05.8-plain.config")))
		settings(conf, read(t, "slurm.conf.slurmbridge"))
		nodes := settings(conf, read(t, slurmConf))
		gres := read(t, gresConf)
		hooks := map[string][]doctor.Hook{}
		for _, h := range []string{"Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld"} {
			hooks[h] = []doctor.Hook{{File: conf[h], Ours: strings.HasPrefix(conf[h], "/usr/lib/slurmbridge/")}}
		}
		return doctor.Examine(&doctor.Facts{
			Config: conf, Nodes: text.ParseNodes([]byte(nodes)), Hooks: hooks, User: "slurm", Settings: active,
			Partitions: text.ParsePartitions([]byte("PartitionName=" + conf["PartitionName"] + " State=UP\n")),
			ConfDir:    "/etc/slurm", JobSubmitLua: &script, GresConf: &gres,
		})
	}
	for _, d := range dirs {
		dir := filepath.Dir(d)
		must.Equal(t, examine(d, filepath.Join(dir, "gres.conf")), nil, dir)
		// slurm.conf and gres.conf say the same of a node.
		m := regexp.MustCompile(`Gres=gpu:(\w+):(\d),(mps|shard):(\d)00\b`).FindStringSubmatch(read(t, d))
		if m == nil || m[2] != m[4] {
			t.Fatalf("%s: not 100 shares a GPU", d)
		}
		files := map[string]string{"1": "/dev/nvidia0", "4": "/dev/nvidia[0-3]"}[m[2]]
		want := "Name=gpu Type=" + m[1] + " File=" + files + "\nName=" + m[3] + " Count=" + m[4] + "00 File=" + files
		if m[2] != "1" && m[3] == "mps" {
			want += " Flags=all_sharing"
		}
		must.Contain(t, read(t, filepath.Join(dir, "gres.conf")), "\n"+want+"\n", dir)
		must.Contain(t, read(t, d), "\nGresTypes=gpu,"+m[3]+"\n", d)
	}
}

// The sample of client_config is one, with its comments taken for lines as well, but for its files.
func TestClientConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "client.yml")
	text := read(t, "client.yml")
	_, text, _ = strings.Cut(text, "tls_config:")
	text = regexp.MustCompile(`(?m)^#  Where.*\n`).ReplaceAllString("tls_config:"+text, "")
	must.OK(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "\n#", "\n")), 0o600))
	must.Fail(t, must.Err(recordhttp.NewClient(file)), "/etc/slurmbridge/ca.crt", "the file of its authority is missing")
}

// The web-config sample is one, but for its certificate and its password.
func TestWebConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	check := func(text string) error {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		return web.Validate(file)
	}
	text := read(t, "web.yml")
	must.Fail(t, check(text), "/etc/slurmbridge/tls.crt", "its certificate is missing")
	_, users, _ := strings.Cut(text, "#basic_auth_users:")
	users = "basic_auth_users:" + strings.ReplaceAll(strings.ReplaceAll(users, "\n#", "\n"), "$2y$10$...",
		"$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG")
	if err := check(users); err != nil {
		t.Errorf("%v in\n%s", err, users)
	}
	must.Fail(t, check(users+"tls:\n"), "", "a key that there isn't")
}
