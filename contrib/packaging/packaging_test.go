// Package packaging_test holds the packages' scripts to what they promise. What takes
// whole packages is contrib/packaging/check's.
package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// script runs a maintainer's script as dpkg does for an installation in root.
func script(t *testing.T, root, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command("sh", append([]string{filepath.Join("scripts", name)}, args...)...)
	cmd.Env = append(os.Environ(), "DPKG_ROOT="+root)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// lay writes files, named from the root of an installation.
func lay(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o755))
	}
	return root
}

// files lists what is there, folders only where nothing is in them.
func files(t *testing.T, root string) string {
	t.Helper()
	out, err := exec.Command("find", root, "-mindepth", "1", "(", "!", "-type", "d", "-o", "-empty", ")", "-printf",
		"%P ").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(out))
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Hooks outlive the package as ones that do nothing, and those that a site's files still name, in whatever way, outlive
// its purge.
func TestNamedHooksStay(t *testing.T) {
	const conf, ours = "opt/slurm/etc/site.conf", "/usr/lib/slurmbridge/"
	for _, c := range []struct{ file, text, stays string }{
		{conf, "Prolog=/usr/lib/slurmbridge/prolog\r\n", "prolog"},
		{conf, "Prolog=\"/usr/lib/slurmbridge/prolog\"\n", "prolog"},
		{conf, "Prolog=/usr/lib/slurmbridge/prolog\t# ours\n", "prolog"},
		{conf, "Prolog=/usr/lib/slurmbridge/prolog\n", "prolog"},
		{conf, "prolog = /opt/x,/usr/lib/slurmbridge/prolog,/opt/y\n", "prolog"},
		{conf, "Epilog=/usr/lib/slurmbridge/epilog # ours\n", "epilog"},
		{conf, "TaskProlog=/usr/lib/slurmbridge/taskprolog", "taskprolog"},
		{conf, "#Prolog=/usr/lib/slurmbridge/prolog\n", ""},
		{conf, "EpilogSlurmctld=/usr/lib/slurmbridge/epilog-slurmctld\n", ""},
		{conf, "Prolog=/usr/lib/slurmbridge/prolog2\nEpilog=/usr/bin/epilog\n", ""},
		{conf, "", ""},
		{"etc/slurm/prolog.sh", "#!/bin/sh\n/usr/lib/slurmbridge/prolog\n", "prolog"},
		{"etc/slurm/prolog.d/50-slurmbridge", "a link", "prolog"},
	} {
		root := lay(t, map[string]string{c.file: c.text})
		named := filepath.Join(root, c.file)
		if c.text == "a link" {
			must.OK(t, os.Remove(named), os.Symlink(ours+c.stays, named))
		}
		are := func(when string, there func(hook string) bool) {
			t.Helper()
			for _, hook := range []string{"prolog", "epilog", "taskprolog"} {
				err := exec.Command(filepath.Join(root, ours, hook)).Run()
				must.Equal(t, err == nil, there(hook), "%s: %q: %s: %s: %v", c.file, c.text, when, hook, err)
			}
		}
		script(t, root, "gpuprof.postrm", "remove")
		are("removed", func(string) bool { return true })
		said := script(t, root, "gpuprof.postrm", "purge")
		are("purged", func(hook string) bool { return hook == c.stays })
		must.Equal(t, said != "", c.stays != "", "%q: it says %q", c.text, said)
		must.OK(t, os.Remove(named))
		script(t, root, "gpuprof.postrm", "purge")
		must.Equal(t, files(t, root), filepath.Dir(c.file)+" usr/lib", "%q: what purge left", c.text)
	}
}

// A site's job_submit.lua that loads ours loads it, or one that does nothing, for as long as it names it: slurmctld
// doesn't start with one that fails.
func TestNamedScriptStays(t *testing.T) {
	const site, ours = "etc/slurm/job_submit.lua", "usr/share/slurmbridge/job_submit.lua"
	root := lay(t, map[string]string{site: "local s = dofile(\"/" + ours + "\")\n"})
	script(t, root, "slurmbridge.postrm", "remove")
	script(t, root, "slurmbridge.postrm", "purge")
	b := must.Get(os.ReadFile(filepath.Join(root, ours)))(t)
	must.Contain(t, string(b), "return { submit = pass, modify = pass }")
	must.OK(t, os.Remove(filepath.Join(root, site)))
	must.OK(t, os.Symlink("/"+ours, filepath.Join(root, site)))
	script(t, root, "slurmbridge.postrm", "purge")
	must.Get(os.Stat(filepath.Join(root, ours)))(t)
	must.OK(t, os.Remove(filepath.Join(root, site)))
	const gate = "run/slurmbridge/gate" // what is left names no gate
	must.OK(t, os.MkdirAll(filepath.Join(root, filepath.Dir(gate)), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(root, gate),
		[]byte("job=7\nexpires=99999999999\ngres=shard\nunits=100\nuid=1\n"), 0o644))
	script(t, root, "slurmbridge.postrm", "remove")
	must.Equal(t, string(must.Get(os.ReadFile(filepath.Join(root, gate)))(t)), "gres=shard\nunits=100\n")
	script(t, root, "slurmbridge.postrm", "purge")
	must.Is(t, must.Err(os.Stat(filepath.Join(root, ours))), os.ErrNotExist, "nothing names it")
}

// State goes with purge, and only then; what belongs to the other package or to running jobs stays.
func TestStateGoesWithPurgeOnly(t *testing.T) {
	all := map[string]string{
		"etc/slurmbridge/web.yml": "", "run/slurmbridge/gate": "", "run/slurmbridge/wake": "",
		"run/slurmbridge/jobs/7.json":   "{}",
		"run/slurmbridge/mps/gpu0/lock": "", "var/lib/slurmbridge/slurmbridge.db": "", "var/spool/slurmbridge/7.json": "",
	}
	for _, c := range []struct{ script, arg, gone string }{
		{"slurmbridge.postrm", "upgrade", ""},
		{"slurmbridge.postrm", "remove", "run/slurmbridge/gate run/slurmbridge/wake"},
		{"slurmbridge.postrm", "purge", "run/slurmbridge/gate run/slurmbridge/wake var/lib/slurmbridge/slurmbridge.db"},
		{"gpuprof.postrm", "upgrade", ""},
		{"gpuprof.postrm", "remove", ""},
		{"gpuprof.postrm", "purge", "run/slurmbridge/jobs/7.json run/slurmbridge/mps/gpu0/lock var/spool/slurmbridge/7.json"},
	} {
		root := lay(t, all)
		script(t, root, c.script, c.arg)
		for name := range all {
			_, err := os.Stat(filepath.Join(root, name))
			must.Equal(t, err != nil, strings.Contains(" "+c.gone+" ", " "+name+" "),
				"%s %s: %s: %v", c.script, c.arg, name, err)
		}
	}
}

// Purged one after the other, in either order, nothing is left.
func TestPurgeLeavesNothing(t *testing.T) {
	for _, order := range [][]string{{"slurmbridge", "gpuprof"}, {"gpuprof", "slurmbridge"}} {
		root := lay(t, map[string]string{
			"run/slurmbridge/gate": "", "run/slurmbridge/jobs/7.json": "{}", "run/slurmbridge/gpus.json": "",
			"run/slurmbridge/agent.state":    "",
			"run/slurmbridge/ended/7-0.json": "{}", "run/slurmbridge/mps/gpu0/log/server.log": "",
			"var/lib/slurmbridge/slurmbridge.db": "",
			"var/spool/slurmbridge/7.json":       "", "etc/systemd/system/multi-user.target.wants/other.service": "",
			"etc/systemd/system/timers.target.wants/slurmbridge-notify.timer": "",
			"etc/systemd/system/timers.target.wants/other.timer":              "",
		})
		must.OK(t, os.MkdirAll(filepath.Join(root, "etc/slurmbridge"), 0o755))
		for _, pkg := range order {
			script(t, root, pkg+".prerm", "remove")
			script(t, root, pkg+".postrm", "remove")
			script(t, root, pkg+".postrm", "purge")
		}
		must.Equal(t, files(t, root), "etc/systemd/system/multi-user.target.wants/other.service "+
			"etc/systemd/system/timers.target.wants/other.timer run usr/lib usr/share var/lib var/spool",
			"what is left: %v", order)
	}
}

// A program may be packed only if each module in it has a licence to hand on.
func TestModuleWithoutLicenceIsRefused(t *testing.T) {
	bin := t.TempDir()
	for _, c := range []struct {
		file string
		ok   bool
	}{{"LICENSE", true}, {"COPYING.txt", true}, {"licence-MIT", true}, {"NOTICE", false}, {"README", false}} {
		root := lay(t, map[string]string{
			"module/" + c.file: "a text\n", "LICENSE": "Go's own\n",
			"go": "#!/bin/sh\ncase $1 in\nversion) printf '\\tdep\\texample.org/m\\tv1.2.3\\th1:x=\\n' ;;\n" +
				"env) dirname \"$0\" ;;\nlist) echo \"example.org/m v1.2.3 $(dirname \"$0\")/module\" ;;\nesac\n",
		})
		cmd := exec.Command("./licences", filepath.Join(bin, "program"))
		cmd.Env = append(os.Environ(), "GO="+filepath.Join(root, "go"))
		out, err := cmd.CombinedOutput()
		must.Equal(t, err == nil, c.ok, "%s: %v: %s", c.file, err, out)
		want := "example.org/m v1.2.3 has no licence"
		if c.ok {
			want = "Go's own\n\n==== example.org/m v1.2.3: " + c.file + " ====\n\na text\n"
		}
		must.Contain(t, string(out), want, c.file)
	}
}

func TestLicencesOfWhatIsNoProgram(t *testing.T) {
	if out, err := exec.Command("./licences", "packaging_test.go").CombinedOutput(); err == nil {
		t.Errorf("a file that is no program was taken: %s", out)
	}
}

// sources makes a repository of one commit with the changelog, our scripts for versions, and a Makefile whose packages
// are empty files. It returns a function that runs one of the scripts there.
func sources(t *testing.T, changelog string) (dir string, run func(command string) (string, error)) {
	t.Helper()
	at := "contrib/packaging/"
	dir = lay(t, map[string]string{
		"CHANGELOG.md": changelog, ".gitignore": "build/\n",
		at + "version": string(must.Get(os.ReadFile("version"))(t)), at +
			"release": string(must.Get(os.ReadFile("release"))(t)),
		"Makefile": `packages:
	mkdir -p $(PACKAGES)/stage/p/common/usr/share/doc/p
	echo {} | gzip >$(PACKAGES)/stage/p/common/usr/share/doc/p/sbom.cdx.json.gz
	echo {} | gzip >$(PACKAGES)/stage/p/common/usr/share/doc/p/sbom-p-hook.cdx.json.gz
	touch $(PACKAGES)/p_$(ARCH).deb $(PACKAGES)/p.$(ARCH).rpm
`,
	})
	run = func(command string) (string, error) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a",
			"GIT_COMMITTER_EMAIL=a",
			"GIT_CONFIG_GLOBAL=/dev/null", "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for _, c := range []string{"git init -q", "git add .", "git commit -q -m first"} {
		if out, err := run(c); err != nil {
			t.Fatal(out, err)
		}
	}
	return dir, run
}

const (
	released   = "# Changelog\n\n## 1.2.3 (2026-01-02)\n\n- new\n\n## 1.2.2 (2025-01-01)\n\n- old\n"
	unreleased = "# Changelog\n\n## Unreleased\n\n- next\n\n## 1.2.3 (2026-01-02)\n\n- new\n"
)

// A clean tree has the version of the changelog's first heading, and can be released; every other tree's version says
// what it is, and is refused.
func TestVersions(t *testing.T) {
	for name, c := range map[string]struct{ changelog, do, version, refused string }{
		"released":   {released, "true", `1\.2\.3`, ""},
		"tagged":     {released, "git tag v1.2.3", `1\.2\.3`, ""},
		"changed":    {released, "echo >>CHANGELOG.md", `1\.2\.3\+dirty`, "files are changed or new:  M CHANGELOG.md"},
		"a new file": {released, "touch new.go", `1\.2\.3\+dirty`, "files are changed or new: ?? new.go"},
		"after a tag": {
			released, "git tag v1.2.3; git commit -q --allow-empty -m second", `1\.2\.3\+git2\.g[0-9a-f]+`,
			"first heading is no new version",
		},
		"unreleased":              {unreleased, "true", `1\.2\.3\+git1\.g[0-9a-f]+`, "first heading is no new version"},
		"unreleased, without git": {unreleased, "rm -r .git", `1\.2\.3\+unreleased`, "first heading is no new version"},
		"released, without git":   {released, "rm -r .git", `1\.2\.3`, ""},
		"before the first":        {"# Changelog\n\n## Unreleased\n", "true", `0\+git1\.g[0-9a-f]+`, "first heading is no new version"},
		"no heading":              {"# Changelog\n", "true", "version: CHANGELOG.md has no heading.*", "no heading"},
	} {
		t.Run(name, func(t *testing.T) {
			_, run := sources(t, c.changelog)
			must.Get(run(c.do))(t)
			if got, _ := run("contrib/packaging/version"); !regexp.MustCompile("^" + c.version + "$").MatchString(got) {
				t.Errorf("the version is %s, not %s", got, c.version)
			}
			if out, err := run("contrib/packaging/release build/release"); (err != nil) != (c.refused != "") ||
				!strings.Contains(out, c.refused) {
				t.Errorf("release: %v: %s", err, out)
			}
		})
	}
}

// A release is one folder with all that is published.
func TestAReleaseIsOneFolder(t *testing.T) {
	dir, run := sources(t, released)
	if out, err := run("contrib/packaging/release build/release && cd build/release && sha256sum -c --strict SHA256SUMS"); err != nil ||
		strings.Count(out, ": OK") != 9 {
		t.Fatal(out, err)
	}
	must.Equal(t, files(t, filepath.Join(dir, "build")),
		"release/NOTES.md release/SHA256SUMS release/p-hook_1.2.3_amd64.cdx.json "+
			"release/p-hook_1.2.3_arm64.cdx.json release/p.amd64.rpm release/p.arm64.rpm release/p_1.2.3_amd64.cdx.json "+
			"release/p_1.2.3_arm64.cdx.json release/p_amd64.deb release/p_arm64.deb")
	must.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "build/release/NOTES.md")))(t)), "- new\n")
}
