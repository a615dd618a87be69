package door

import (
	"encoding/json"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// searchIndex finds tools by words, ranked by BM25.
type searchIndex struct {
	words    []string             // sorted
	postings map[string][]posting // by word
	length   []float32            // the weighted number of words of each tool
	mean     float64
}

// posting is how often a word occurs in a tool, weighted by where.
type posting struct {
	tool   int32
	weight float32
}

// The weights of a word in a tool's name, its extension's id, its title and the rest.
const (
	weightName      = 4
	weightExtension = 3
	weightTitle     = 3
	weightText      = 1
)

// The usual parameters of BM25.
const (
	bm25K = 1.2
	bm25B = 0.75
)

func buildIndex(tools []listedTool) *searchIndex {
	x := &searchIndex{postings: map[string][]posting{}, length: make([]float32, len(tools))}
	total := 0.0
	for i := range tools {
		weights := wordsOf(&tools[i])
		for word, w := range weights {
			x.postings[word] = append(x.postings[word], posting{int32(i), w})
			x.length[i] += w
		}
		total += float64(x.length[i])
	}
	x.mean = total / max(1, float64(len(tools)))
	for word := range x.postings {
		x.words = append(x.words, word)
	}
	slices.Sort(x.words)
	return x
}

// wordsOf are the words by which a tool is found.
func wordsOf(t *listedTool) map[string]float32 {
	out := map[string]float32{}
	add := func(text string, weight float32) {
		for _, word := range splitWords(text) {
			out[word] += weight
		}
	}
	add(t.key.Tool, weightName)
	add(t.key.ID, weightExtension)
	add(textOf(t.tool.Member("title")), weightTitle)
	_, description, _ := strings.Cut(t.tool.Description, "] ") // after [ext:<id>]
	add(clip(description, 4<<10), weightText)
	var schema struct {
		Properties json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(t.input, &schema) == nil && len(schema.Properties) > 0 {
		members, _ := wire.Members(schema.Properties)
		for _, m := range members {
			add(m.Key, weightText)
			if at, ok := jsonrpc.Member(m.Value, "description"); ok {
				add(clip(textOf(at.In(m.Value)), 1<<10), weightText)
			}
		}
	}
	return out
}

func textOf(raw []byte) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// splitWords splits text at everything that is not a letter or digit, and names at changes of case. In scripts without spaces between
// words, each character is one.
func splitWords(text string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 && len(word) <= 40 {
			out = append(out, stem(strings.ToLower(string(word))))
		}
		word = word[:0]
	}
	lower := false
	for _, r := range text {
		switch {
		case unicode.IsMark(r) && len(word) > 0: // belongs to the letter before it
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush()
			lower = false
			continue
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar):
			flush()
			out = append(out, string(r))
			lower = false
			continue
		case unicode.IsUpper(r) && lower:
			flush()
		}
		lower = unicode.IsLower(r)
		word = append(word, r)
	}
	flush()
	return out
}

// stem removes the commonest English endings, so that files finds file, created create, and repositories repository.
func stem(word string) string {
	for _, ending := range []string{"ing", "ed", "es", "s", "e"} {
		rest, ok := strings.CutSuffix(word, ending)
		isPlural := !strings.HasSuffix(rest, "s") && (!strings.HasSuffix(rest, "u") || len(rest) == 3 || rest == "menu") // not process, focus; but gpus
		if ok && len(rest) >= 3 && (ending != "s" || isPlural) {
			word = rest
			break
		}
	}
	if rest, ok := strings.CutSuffix(word, "y"); ok && len(rest) >= 3 {
		return rest + "i"
	}
	return word
}

// find returns the best tools for a query, and the number of tools that match. Without words it lists the tools of an
// extension.
func (v *view) find(query, extension string, limit int) (hits []*listedTool, total int) {
	if v.search == nil {
		return nil, 0 // there are no tools yet
	}
	v.search.once.Do(func() { v.search.index = buildIndex(v.tools) })
	words := splitWords(query)
	all := len(words) == 0
	var best []scored // the best so far, the best first
	for i, score := range v.search.index.score(words) {
		if score == 0 && !all || extension != "" && !isOf(v.tools[i].key.ID, extension) {
			continue
		}
		total++
		if len(best) == limit && score <= best[limit-1].score {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, score, func(s scored, score float64) int {
			if s.score >= score { // of equal ones the first by name stays first
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, scored{i, score})
		best = best[:min(limit, len(best))]
	}
	for _, s := range best {
		hits = append(hits, &v.tools[s.tool])
	}
	return hits, total
}

// scored is a tool with its rank.
type scored struct {
	tool  int
	score float64
}

// isOf reports whether an id is that of an extension or of a member of it.
func isOf(id, extension string) bool {
	return id == extension || strings.HasPrefix(id, extension) && id[len(extension)] == '.'
}

// score ranks the tools; 0 is one that has none of the words. The last word may be the beginning of a word.
func (x *searchIndex) score(words []string) []float64 {
	out := make([]float64, len(x.length))
	for n, word := range words {
		x.add(out, word, 1)
		if n == len(words)-1 && len(word) >= 3 {
			beginning := word
			if len(word) >= 5 {
				beginning = strings.TrimSuffix(word, "i") // deploy, whose stem ends in i, begins deployment
			}
			from := sort.SearchStrings(x.words, beginning)
			for i := from; i < len(x.words) && i < from+50 && strings.HasPrefix(x.words[i], beginning); i++ {
				if x.words[i] != word {
					x.add(out, x.words[i], 0.5)
				}
			}
		}
	}
	return out
}

func (x *searchIndex) add(score []float64, word string, factor float64) {
	list := x.postings[word]
	n := float64(len(x.length))
	rarity := math.Log(1 + (n-float64(len(list))+0.5)/(float64(len(list))+0.5))
	for _, p := range list {
		w := float64(p.weight)
		norm := bm25K * (1 - bm25B + bm25B*float64(x.length[p.tool])/x.mean)
		score[p.tool] += factor * rarity * w * (bm25K + 1) / (w + norm)
	}
}
