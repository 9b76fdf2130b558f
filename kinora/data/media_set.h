#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/source.h"
#include "kinora/io/tar.h"

/// Sets of pictures and clips in files, with captions: what those who list such a set find, and
/// what MediaSource reads. Everything that belongs to a sample is paired by name, never by place.
namespace kinora::data {

/// Where the caption of an item is.
enum class CaptionForm : uint8_t {
  kNone,
  kInline,    ///< in the item
  kTextFile,  ///< a file holds nothing else
  kJsonFile,  ///< a file holds an object with it, see json_caption
};

/// A picture or clip and what belongs to it.
struct MediaItem {
  std::string path = {};     ///< of the file; empty in archives
  std::string caption = {};  ///< itself, or the path of its file; empty in archives
  CaptionForm caption_form = CaptionForm::kNone;
  std::string control = {};  ///< path of the picture that a ControlNet is shown; empty: none
  std::string before = {};   ///< of the picture before it was changed, likewise
  std::string mask = {};     ///< of its mask, likewise
  std::vector<std::string> references = {};  ///< of pictures of what is to be seen
  bool is_video = false;
  uint32_t place = 0;          ///< index of the root or archive
  uint32_t entry = 0;          ///< in the archive
  uint32_t caption_entry = 0;  ///< in the archive
  int64_t label = 0;
  int64_t num_frames = 0;  ///< as a manifest says it; 0: it does not
  float fps = 0.0F;
};

/// A set of files, or of entries of archives.
struct MediaSet {
  std::vector<std::string> origins;             ///< what data.path names, for messages
  std::vector<std::filesystem::path> roots;     ///< unless empty, files must lie in these folders
  std::vector<io::TarFile> archives;            ///< empty: the items are files
  std::vector<std::string> class_names = {""};  ///< one without a name: the set has no classes
  std::vector<MediaItem> items;
  std::vector<PassedOver> passed_over;
};

/// The caption in a JSON object: its member "caption", "text" or "prompt", the first that is a
/// string or a list of strings, which become lines; empty without one. Error (kIo) for what is no
/// JSON object.
[[nodiscard]] std::string json_caption(std::string_view json, const std::string& name);

/// What messages call an item.
[[nodiscard]] std::string item_name(const MediaSet& set, const MediaItem& item);

/// Numbers the items' classes: item i is of class `labels[i]`. Names that are all numbers below
/// 65536 are their own labels, others are numbered in bytewise order. Where all are empty the set
/// has no classes; where only some are, those items are rejected.
void set_labels(MediaSet& set, std::vector<std::string> labels);

/// What lies below `folder`, hidden files left out: paths relative to it in bytewise order. Links
/// to files are followed, links to folders are `links`. Error (kIo): a folder that cannot be
/// listed.
struct Tree {
  std::vector<std::string> files;
  std::vector<std::string> links;
};
[[nodiscard]] Tree walk(const std::filesystem::path& folder);

/// Pictures and clips in a folder and those below it, with captions in files beside them: NAME.txt
/// or, if there is none, NAME.json (see json_caption) for NAME.jpg. Files that share NAME share the
/// caption. NAME.control.png, NAME.before.png and NAME.mask.png, of any format, are no samples
/// beside a NAME.jpg but belong to it; `beside` says which must be there: a picture without is
/// rejected. So do NAME.reference.png, NAME.reference2.png, ... beside a NAME.jpg or NAME.mp4,
/// which may have fewer than `beside` says; one with more is rejected. No classes.
[[nodiscard]] MediaSet list_captioned_folder(const std::filesystem::path& folder,
                                             const PicturesBeside& beside = {});

/// The layout that Hugging Face calls imagefolder: FOLDER or, where it has one, FOLDER/train holds
/// metadata.csv, .jsonl or .parquet with the column file_name, and perhaps text and label; or else
/// class folders, at any depth.
[[nodiscard]] MediaSet list_image_folder(const std::filesystem::path& folder);

/// What a manifest says beside paths, for whom it is one of several readers.
struct ManifestOptions {
  bool allow_outside = false;  ///< paths may lead out of the manifest's folder
  int64_t references = 0;      ///< how many pictures of a row are read, at most
};

/// Tables that name files: CSV, JSON Lines or Parquet, by their suffix, with the columns path (or
/// file_name, image, video, file), text (or caption, prompt), label, num_frames, fps and reference
/// (pictures, a list or one a line); others are passed by. Paths are relative to the manifest's
/// folder. Rows that name no file are rejected, with their lines.
[[nodiscard]] MediaSet list_manifests(const std::vector<std::filesystem::path>& paths,
                                      const ManifestOptions& options);

/// Tar archives as WebDataset has them: entries whose names are equal up to the first dot of the
/// last part are one sample, wherever they lie in their archive: KEY.jpg with KEY.txt or KEY.json
/// (captions) and KEY.cls (a class number).
[[nodiscard]] MediaSet list_webdataset(const std::vector<std::filesystem::path>& paths);

}  // namespace kinora::data
