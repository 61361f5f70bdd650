package e2e

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// SIGHUP with a broken file changes nothing but the log; with a sound one the
// daemon goes on with the new settings, the same process all along.
func TestReload(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Policy: "dqn"})
	conf := r.Path("slurmbridge.yaml")
	sound := bytes.Replace(must.Get(os.ReadFile(conf))(t), []byte("mode: active\n"), nil, 1)
	write := func(more string) {
		t.Helper()
		must.OK(t, os.WriteFile(conf, append(sound[:len(sound):len(sound)], more...), 0o644))
	}
	mode := func() string {
		var st httpapi.Report
		if err := r.Get("/v1/status", &st); err != nil {
			return ""
		}
		return string(st.Mode)
	}
	gated := func() bool { return r.Gate() != 0 }
	const old = "the old one stays"

	write("mode: shadow\nleese: 30s\n")
	r.signal("slurmbridge", syscall.SIGHUP)
	r.until("the unknown key in the log", func() bool { return r.logged("slurmbridge", old, "leese", conf) })
	write("mode: shadow\nmax_slowdown: fast\n")
	r.signal("slurmbridge", syscall.SIGHUP)
	r.until("the bad value in the log", func() bool { return r.logged("slurmbridge", old, "max_slowdown", conf) })
	// Settings that make sense, and don't work here.
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	for key, value := range map[string]string{
		"policy":       "best",
		"record_users": "[nobody-of-this-name]",
		"web_config":   r.Path("absent"),
		"bin_dir":      r.Path("absent"),
		"slurm_conf":   r.Path("absent"),
		"database":     r.Path("absent", "db"),
		"listen":       taken.Addr().String(),
	} {
		setting := regexp.MustCompile("(?m)^" + key + ":.*\n")
		text := setting.ReplaceAllString(string(sound), "") + "mode: shadow\n" + key + ": " + value + "\n"
		must.OK(t, os.WriteFile(conf, []byte(text), 0o644))
		r.signal("slurmbridge", syscall.SIGHUP)
		r.until(key+" in the log", func() bool { return r.logged("slurmbridge", old, conf+":", " "+key+": ") })
	}
	if m := mode(); m != "active" || !gated() || !r.ready() {
		t.Errorf("mode %q after broken files, ready %v", m, r.ready())
	}

	write("mode: shadow\n")
	r.signal("slurmbridge", syscall.SIGHUP)
	r.until("shadow", func() bool { return mode() == "shadow" && r.metric("slurmbridge_info", "shadow") == 1 })
	if gated() || r.metric("slurmbridge_info", "active") != 0 {
		t.Error("in shadow mode jobs are still gated")
	}
	// Another address, and the old one is free.
	was := r.URL
	now := must.Get(r.FreePort())(t)
	text := strings.ReplaceAll(string(sound), strings.TrimPrefix(was, "http://"), "127.0.0.1:"+now) + "mode: shadow\n"
	must.OK(t, os.WriteFile(conf, []byte(text), 0o644))
	r.signal("slurmbridge", syscall.SIGHUP)
	r.URL = "http://127.0.0.1:" + now
	r.until("shadow elsewhere", func() bool { return mode() == "shadow" && r.ready() })
	if _, err := http.Get(was + "/-/healthy"); err == nil {
		t.Error("the old address answers")
	}
	r.URL = was
	write("mode: active\n")
	r.signal("slurmbridge", syscall.SIGHUP)
	must.Equal(t, r.Daemon(cluster.BridgeDaemon).Alive(), true, "one process all along")
	r.until("active again", func() bool { return mode() == "active" && gated() && r.ready() })
	r.reach("COMPLETED", r.pair("gromacs")...)
	if n := r.metric("slurmbridge_groups_total"); n == 0 {
		t.Error("after reloads nothing is grouped")
	}
	if r.logged("slurmbridge", "GPU models") {
		t.Error("after a reload the GPUs' models can't be read any more")
	}
}
