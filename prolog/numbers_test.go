package prolog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// sited is what Slurm's configuration in a folder, of these files, says of node n2.
func sited(t must.T, dir string, files map[string]string) site {
	t.Helper()
	for name, text := range files {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return readSite(filepath.Join(dir, "slurm.conf"), "n2")
}

// constrained are the files of a Slurm that keeps each job to its devices, with more lines of slurm.conf and a
// gres.conf.
func constrained(slurm, gres string) map[string]string {
	return map[string]string{
		"slurm.conf": "TaskPlugin=task/cgroup,task/affinity\n" + slurm, "gres.conf": gres,
		"cgroup.conf": "ConstrainDevices = YES\n",
	}
}

// meant are the cards that Slurm's numbers mean, "?" for one that isn't certain.
func meant(cards []Card) string {
	out := ""
	for n := range cards {
		c, known := card(cards, n)
		switch {
		case known && c.Lost:
			c.UUID = "lost"
		case !known:
			c.UUID = "?"
		}
		out += strings.TrimPrefix(c.UUID, "GPU-") + " "
	}
	return strings.TrimRight(out, "? ")
}

// four are GPUs in NVML's order, whose device files are numbered otherwise.
func four(must.T, string) (cards []Card) {
	for i, minor := range []int{2, 3, 1, 0} {
		cards = append(cards, Card{NVMLIndex: i, Minor: minor, UUID: "GPU-" + string(rune('a'+i)), Model: "NVIDIA A100"})
	}
	return cards
}

// oneLost are the four, and the driver has lost the second.
func oneLost(t must.T, proc string) []Card {
	cards := four(t, proc)
	cards[1] = Card{NVMLIndex: 1, Minor: 3, Lost: true}
	return cards
}

// cut is a GPU in three instances beside a whole one.
func cut(t must.T, proc string) []Card {
	return cutAs(t, proc, map[int]int{7: 66, 8: 75, 9: 84}) // as drivers number their files
}

// cutAs is a GPU in instances beside a whole one. Its instances' places under /proc are written, and which files
// give access to each: of those the first is a GPU instance's, and the next that of its only compute instance.
func cutAs(t must.T, proc string, caps map[int]int) []Card {
	t.Helper()
	folder := filepath.Join(proc, "driver/nvidia-caps")
	must.OK(t, os.MkdirAll(folder, 0o755))
	text := "config 1\nmonitor 2\n"
	cards := []Card{{NVMLIndex: 1, Minor: 1, Model: "NVIDIA A100", UUID: "GPU-b"}}
	for gi, n := range caps {
		text += fmt.Sprintf("gpu0/gi%d/access %d\ngpu0/gi%d/ci0/access %d\n", gi, n, gi, n+1)
		must.OK(t, os.MkdirAll(filepath.Join(proc, fmt.Sprintf("driver/nvidia/capabilities/gpu0/mig/gi%d/ci0", gi)), 0o755))
		cards = append(cards, Card{GI: gi, Model: "NVIDIA A100 MIG 1g.5gb", UUID: fmt.Sprintf("MIG-%d", gi)})
	}
	must.OK(t, os.WriteFile(filepath.Join(folder, "mig-minors"), []byte(text), 0o600))
	return cards
}

// capFilesOf is a line of gres.conf for the instance whose first file has this number.
func capFilesOf(kind string, n int) string {
	return fmt.Sprintf("Name=gpu Type=%s MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap%d,"+
		"/dev/nvidia-caps/nvidia-cap%d\n", kind, n, n+1)
}

func TestWhichCardANumberMeans(t *testing.T) {
	all := "Name=gpu File=/dev/nvidia[0-3]\n"
	const xy = "Name=gpu Type=x File=/dev/nvidia[0-1]\nName=gpu Type=y File=/dev/nvidia[2-3]"
	mixed := capFilesOf("s", 84) + capFilesOf("s", 66) + "Name=gpu Type=l File=/dev/nvidia1\n" + capFilesOf("s", 75)
	for _, c := range []struct {
		name        string
		cards       func(t must.T, proc string) []Card
		slurm, gres string
		want        string
	}{
		{"gres.conf, each job kept to its devices", four, "", all, "d c a b"},
		{
			"gres.conf in an order of its own", four, "",
			"NodeName=n[1-3] Name=gpu File=/dev/nvidia3,/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia2", "b d c a",
		},
		{"one GPU kept out", four, "", "Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia[2-3] # not 1", "d a b"},
		{
			"other nodes' lines", four, "",
			"NodeName=n[3-9] Name=gpu File=/dev/nvidia[0-3]\nNodeName=n2 Name=gpu \\\n File=/dev/nvidia[2-3]", "a b",
		},
		{"quoted values", four, "", `Name="gpu" Files="/dev/nvidia[0-3]"`, "d c a b"},
		{"slurm.conf's order of types comes first", four, "NodeName=n[1-4] Gres=gpu:y:2(S:0),gpu:x:1,shard:300", xy, "a b d"},
		{"defaults of other nodes", four, "NodeName=n2 Gres=gpu:y:1\nNodeName=DEFAULT Gres=gpu:x:2\nNodeName=n3 CPUs=4", xy, "a"},
		{"slurm.conf's defaults", four, "NodeName=DEFAULT Gres=gpu:y:1\nNodeName=n2 CPUs=4", xy, "a"},
		{"AutoDetect=nvml", four, "", "AutoDetect=nvml\n", "a b c d"},
		{"AutoDetect=nvml, fewer wanted", four, "NodeName=n2 Gres=gpu:a100:3", "AutoDetect=nvml\n", "a c d"},
		{"AutoDetect=nvidia", four, "", "AutoDetect=nvidia\n", "d c a b"},
		{"AutoDetect of this node", four, "", "AutoDetect=nvml\nNodeName=n2 AutoDetect=nvidia", "d c a b"},
		{"AutoDetect off on this node", four, "", "AutoDetect=nvml\nNodeName=n2 AutoDetect=off " + all, "d c a b"},
		// A Slurm built without NVML, as that of Debian 12, goes by the files.
		{"AutoDetect=nvml with files in another order", four, "", "AutoDetect=nvml\n" + all, ""},
		{
			"AutoDetect=nvml with files in its order", four, "",
			"AutoDetect=nvml\nName=gpu File=/dev/nvidia[2-3],/dev/nvidia[0-1]", "a b",
		},
		{"AutoDetect=full", four, "", "AutoDetect=full", ""},
		{"another maker's", four, "", "AutoDetect=rsmi", ""},
		{"no gres.conf", four, "", "", ""},
		// A job that can reach all cards takes the one that CUDA calls so.
		{"each job can reach all GPUs", four, "TaskPlugin=task/affinity", all, "a b c d"},
		{"and one GPU is kept out", four, "TaskPlugin=task/none", "Name=gpu File=/dev/nvidia[1-3]\n", "a b c"},
		// A card that the driver has lost keeps its number while Slurm has it.
		{"a lost card", oneLost, "NodeName=n2 Gres=gpu:4", "AutoDetect=nvml", "a lost c d"},
		{"a lost card, one less wanted", oneLost, "NodeName=n2 Gres=gpu:3", "AutoDetect=nvml", "a c d"},
		// Instances follow whole cards where Slurm finds them, and are told by their files where gres.conf names them.
		{"instances found by Slurm", cut, "", "AutoDetect=nvml", "b MIG-7 MIG-8 MIG-9"},
		// The type a100 is a part of the name of an instance of one, too (_normalize_sys_gres_types).
		{"fewer than there are", cut, "NodeName=n2 Gres=gpu:1g.5gb:2,gpu:a100:1", "AutoDetect=nvml", "MIG-7 MIG-8 MIG-9"},
		{"by their whole name", cut, "NodeName=n2 Gres=gpu:nvidia_a100_1g.5gb:3", "AutoDetect=nvml", "MIG-7 MIG-8 MIG-9"},
		{"in gres.conf's order", cut, "", mixed, "MIG-9 MIG-7 b MIG-8"},
		{"in slurm.conf's", cut, "NodeName=n2 Gres=gpu:l:1,gpu:s:3,shard:400", mixed, "b MIG-9 MIG-7 MIG-8"},
		{
			"an instance that isn't there", cut, "", capFilesOf("s", 66) + capFilesOf("s", 93) + capFilesOf("s", 75),
			"MIG-7 ? MIG-8",
		},
		{"a GPU that is cut, as if whole", cut, "", "Name=gpu File=/dev/nvidia[0-1]", "? b"},
		{
			"an instance by a part of its files, and one that others have", cut, "",
			"Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap84,/dev/nvidia-uvm\n", "MIG-9",
		},
		{"a detector that knows no instances", cut, "", "AutoDetect=nvidia", ""},
	} {
		proc := t.TempDir()
		cards, s := c.cards(t, proc), sited(t, t.TempDir(), constrained(c.slurm, c.gres))
		s.number(cards, proc)
		must.Equal(t, meant(cards), c.want, c.name)
	}
}

// While the instances aren't those that the agent has listed no number means one of them, nor a GPU that was whole.
func TestInstancesThatAreOthers(t *testing.T) {
	for name, c := range map[string]struct{ made, gone, want string }{
		"as listed":         {"", "gpu0/none", "b MIG-7 MIG-8 MIG-9"},
		"one more":          {"gpu0/mig/gi10/ci0", "gpu0/none", "b"},
		"one less":          {"", "gpu0/mig/gi9", "b"},
		"the whole one cut": {"gpu1/mig/gi1/ci0", "gpu0/none", ""},
		"nothing is known":  {"", "", "b"},
	} {
		proc := t.TempDir()
		cards, folder := cut(t, proc), filepath.Join(proc, "driver/nvidia/capabilities")
		must.OK(t, os.MkdirAll(filepath.Join(folder, c.made), 0o755), os.RemoveAll(filepath.Join(folder, c.gone)))
		s := sited(t, t.TempDir(), constrained("", "AutoDetect=nvml"))
		s.number(cards, proc)
		must.Equal(t, meant(cards), c.want, name)
	}
}

// In whatever order NVML has the instances, the driver numbers their files and gres.conf names them, beside a whole
// GPU: a number means the instance of its files, or where Slurm finds them the one that is as many places down their
// files.
func TestNumbersOfAnyInstances(t *testing.T) {
	dir, proc := t.TempDir(), t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.Permutation([]int{12, 21, 30, 39, 48, 57, 66}).Draw(t, "files")
		caps := map[int]int{}
		for gi := range rapid.IntRange(1, len(numbers)).Draw(t, "instances") {
			caps[gi] = numbers[gi]
		}
		must.OK(t, os.RemoveAll(filepath.Join(proc, "driver")))
		cards := rapid.Permutation(cutAs(t, proc, caps)).Draw(t, "NVML's order")
		order := rapid.Permutation(cards).Draw(t, "gres.conf's order")
		gres := "AutoDetect=nvml\n"
		if rapid.Bool().Draw(t, "by hand") {
			gres = ""
			for _, c := range order {
				if c.mig() {
					gres += capFilesOf("s", caps[c.GI])
				} else {
					gres += "Name=gpu File=/dev/nvidia1\n"
				}
			}
		} else {
			slices.SortFunc(order, func(a, b Card) int {
				if a.mig() != b.mig() {
					return strings.Compare(a.UUID, b.UUID) // GPU- is before MIG-
				}
				return caps[a.GI] - caps[b.GI]
			})
		}
		s := sited(t, dir, constrained("", gres))
		s.number(cards, proc)
		for k, want := range order {
			if c, _ := card(cards, k); c.UUID != want.UUID {
				t.Fatalf("number %d means %q, want %q\n%s", k, c.UUID, want.UUID, gres)
			}
		}
	})
}

// However a node's cards are numbered by bus, by driver and in gres.conf, and whichever of them Slurm lacks, a number
// means the card of its file where a job has that alone, and else the card that CUDA calls so; no two numbers mean one
// card.
func TestNumbersOfAnyNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "cards")
		places := make([]int, n)
		for i := range places {
			places[i] = i
		}
		minors, bus := rapid.Permutation(places).Draw(t, "minors"), rapid.Permutation(places).Draw(t, "bus")
		files := rapid.Permutation(places).Draw(t, "files")[:max(1, n-rapid.IntRange(0, 1).Draw(t, "missing"))]
		cards := make([]Card, n)
		for i := range cards {
			cards[i] = Card{Minor: minors[i], NVMLIndex: bus[i], UUID: fmt.Sprintf("GPU-%d", i)}
		}
		s := site{constrains: rapid.Bool().Draw(t, "constrains")}
		for _, f := range files {
			s.lines = append(s.lines, gpuLine{devices: [][]string{{fmt.Sprintf("/none/nvidia%d", f)}}})
		}
		s.number(cards, "/none")
		seen := map[string]bool{}
		for k, f := range files {
			c, known := card(cards, k)
			if !known || seen[c.UUID] || s.constrains && c.Minor != f || !s.constrains && c.NVMLIndex != k {
				t.Fatalf("number %d means %+v", k, c)
			}
			seen[c.UUID] = true
		}
	})
}

// Slurm names cards to the prolog where it knows them; the job's file and the epilog go by that.
func TestSlurmNamesTheCard(t *testing.T) {
	h := &Hook{Dir: Dir(t.TempDir()), Now: time.Now, Cards: []Card{
		{Index: 0, UUID: "GPU-a"}, {Index: 1, UUID: "GPU-b"}, {Index: 2, UUID: "MIG-c"},
	}}
	must.OK(t, h.Prolog(t.Context(), env("SLURM_JOB_GPUS", "0,2", "CUDA_VISIBLE_DEVICES", "GPU-b,MIG-c",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")))
	must.Equal(t, read(t, h.Dir.running(7)).UUIDs, []string{"GPU-b", "MIG-c"})
	if _, known := card(h.Cards, 1); known {
		t.Error("a card has two numbers")
	}
}

func FuzzSlurmConf(f *testing.F) {
	f.Add("NodeName=n[1-3] Name=gpu File=/dev/nvidia[0-3]\nAutoDetect=nvml\nInclude gres.conf\n")
	f.Add("Name=gpu File=/dev/nvidia[0-9999999999],a[[[]]]b \\\n \\\n")
	f.Add("Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap21,a\ngpu1/gi0/access " +
		"21\ngpu1/gi0/ci0/access 99999999999999999999\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		must.OK(t, os.MkdirAll(filepath.Join(dir, "driver/nvidia-caps"), 0o755),
			os.MkdirAll(filepath.Join(dir, "driver/nvidia/capabilities/gpu1/mig/gi0/ci0"), 0o755))
		s := sited(t, dir, map[string]string{
			"slurm.conf": text, "gres.conf": text, "cgroup.conf": text, "driver/nvidia-caps/mig-minors": text,
		})
		cards := []Card{{UUID: "GPU-a"}, {Minor: 1, NVMLIndex: 1, UUID: "MIG-b"}}
		s.number(cards, dir)
		if cards[0].Index == cards[1].Index && cards[0].Index != unknown {
			t.Errorf("two cards with the number %d", cards[0].Index)
		}
	})
}

// Whether GPUs are shared by gres/shard stands in slurm.conf or what it includes, and whether jobs have a /dev/shm of
// their own in the file of the plugin that slurm.conf names.
func TestWhatHooksReadInSlurmsFiles(t *testing.T) {
	const tmpfs, linux = "JobContainerType=job_container/tmpfs", "NamespaceType=namespace/linux"
	for _, c := range []struct {
		slurm, file, text string
		shard, hides      bool
		contains          bool // an extern step
	}{
		{slurm: "GresTypes=gpu,shard\n", shard: true},
		{slurm: "# GresTypes=gpu,shard\n"},
		{slurm: "grestypes = gpu , Shard # both\n", shard: true},
		{slurm: "GresTypes=gpu\nGresTypes=shard", shard: true},
		{slurm: "GresTypes=gpu,mps\n"},
		{slurm: "include more.conf\n", file: "more.conf", text: "NodeName=n1\nClusterName=c GresTypes=shard", shard: true},
		{slurm: "Include DIR/more.conf\n", file: "more.conf", text: "GresTypes=gpu,shard\n", shard: true},
		// As slurmd gets it from slurmctld.
		{slurm: "Include /elsewhere/more.conf\n", file: "more.conf", text: "GresTypes=gpu,shard\n", shard: true},
		{slurm: "Include nothing.conf\n"},
		{slurm: "Include slurm.conf\n"},
		{slurm: "#Include more.conf\n", file: "more.conf", text: "GresTypes=gpu,shard\n"},
		{slurm: "JobContainerType=job_container/none", file: "job_container.conf", text: "BasePath=/x"},
		{slurm: tmpfs, file: "job_container.conf", text: "BasePath=/x", hides: true},
		{slurm: tmpfs, file: "job_container.conf", text: "BasePath=/x Dirs=/tmp"},
		{slurm: tmpfs}, // slurmd doesn't start
		{slurm: linux, file: "namespace.yaml", text: "defaults:\n  dirs: /dev/shm\n", hides: true},
		{slurm: linux, file: "namespace.yaml", text: "defaults:\n  dirs: /tmp\n"},
		{slurm: "PrologFlags=Alloc,NoHold"},
		{slurm: "PrologFlags=alloc,contain", contains: true},
		{slurm: "PrologFlags=X11", contains: true},
		{slurm: "PrologFlags=X11\nPrologFlags=Alloc"},
	} {
		dir := t.TempDir()
		files := map[string]string{"slurm.conf": strings.ReplaceAll(c.slurm, "DIR", dir)}
		if c.file != "" {
			files[c.file] = c.text
		}
		s := sited(t, dir, files)
		must.Equal(t, [3]bool{s.shard, s.hidesMemory, s.contains}, [3]bool{c.shard, c.hides, c.contains}, "%s %s", c.slurm,
			c.text)
	}
}
